"""The examples, run as a reader of the repository runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

STREAM = Path(__file__).parents[1] / "examples" / "stream.py"


def run(*arguments: str, models: Path) -> subprocess.CompletedProcess[str]:
    """Run the streaming example with its own models folder."""
    environment = os.environ | {"SPECCHAT_HOME": str(models.parent), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(STREAM), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.model
def test_the_library_streams_rounds(tmp_path: Path, default_model: Path) -> None:
    models = tmp_path / "models"
    models.symlink_to(default_model.parent)
    done = run("Name three rivers", models=models)
    assert done.returncode == 0, done.stderr
    *rounds, total = done.stdout.splitlines()
    assert [int(line.split()[0]) for line in rounds] == list(range(len(rounds)))
    assert all("γ" in line and ("correction" in line or "bonus" in line or "plain" in line) for line in rounds[:-1])
    assert "tokens per target pass" in total


@pytest.mark.slow
def test_a_target_that_does_not_exist_is_one_sentence(tmp_path: Path) -> None:
    done = run("Name three rivers", "no-such-model", models=tmp_path / "models")
    assert done.returncode == 1
    assert done.stderr.startswith("no model is called 'no-such-model'")
    assert len(done.stderr.splitlines()) == 1
