"""`specchat models`: the table, the JSON, the progress, and failures as one line."""

import json
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from specchat.app.cli.commands import models
from specchat.app.cli.main import run
from specchat.app.cli.progress import pull_progress
from specchat.engine.kernels.library import missing
from specchat.engine.models import DEFAULT_PRESET, PRESETS, Machine
from tests.app.cli.commands.command import Output
from tests.tiny_model import write_tiny_gguf


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty home of specchat; none for the hub's library."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


@pytest.fixture
def gguf(tiny_model: Callable[..., Path], tmp_path: Path) -> Path:
    return write_tiny_gguf(tiny_model(hidden_size=64, intermediate_size=96), tmp_path / "tiny.gguf")


def test_list(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every preset, and what this machine lacks for it."""
    monkeypatch.setattr(models.Machine, "now", lambda _: Machine(4 * 10**9, 10**9, 24e9))
    assert run(["models", "list"]) == 0
    first, *others = capsys.readouterr().out.splitlines()[: 1 + len(PRESETS)]
    assert first.split() == ["PRESET", "DOWNLOAD", "MEMORY", "TOK/S", "HERE", "DRAFTER", "τ", "LICENCE"]
    lines = {line.split()[0]: line for line in others}
    assert list(lines) == list(PRESETS)
    assert sum(" * " in line for line in others) == 1
    assert "lacks 2.5 GB memory" in lines["qwen3.5-9b"]
    assert "lacks 1.2 GB disk" in lines["lfm2.5-1.2b"]
    assert "lacks" not in lines["smollm2-135m"]
    assert " assistant     2.1  " in lines["gemma-4-e2b"]
    assert not list(home.iterdir())


def test_list_as_json(home: Path, gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "pull", str(gguf)]) == 0
    (home / "models" / DEFAULT_PRESET).mkdir()
    (home / "models" / DEFAULT_PRESET / "config.json").write_text("{}")
    capsys.readouterr()
    assert run(["models", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert (listed["folder"], listed["default"]) == (str(home / "models"), DEFAULT_PRESET)
    first, second = listed["presets"][:2]
    assert first["local"]["folder"] == str(home / "models" / DEFAULT_PRESET)
    assert second["local"] is None
    assert (second["draft"], second["tau"]) == ("mtp", 2.4)
    assert second["tau_source"].startswith("for Qwen3.5-9B by ")
    preset = PRESETS[second["name"]]
    assert (second["download_bytes"], second["licence"]) == (preset.download_bytes(gpu=False), preset.licence)
    assert (first["download_bytes"], listed["recommended"] in PRESETS) == (0, True)
    (other,) = listed["others"]
    assert (other["source"], Path(other["folder"]).is_dir(), other["bytes"] > 10_000) == (str(gguf), True, True)


def test_pull_reports_in_plain_lines(home: Path, gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "pull", str(gguf)]) == 0
    said = capsys.readouterr()
    (folder,) = (home / "models").glob("tiny-*")
    assert said.out == f"{gguf} is ready in {folder}\n"
    lines = said.err.splitlines()
    assert lines[0] == "Reading tiny.gguf"
    assert lines[-1] == "Packed tiny 100%" or missing()
    assert len(lines) <= 8
    assert "\x1b" not in said.err
    assert run(["models", "pull", folder.name]) == 0
    assert capsys.readouterr().err == ""
    assert run(["models", "list"]) == 0
    assert str(folder) in capsys.readouterr().out


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Output(terminal=True)
    with redirect_stderr(stream), pull_progress() as progress:
        progress("fetch", "Fetching [x] \x1b]0;title\x07", None)
        progress("fetch", "Fetching [x]", 0.5)
        progress("convert", "Converting y", 1.0)
    text = stream.text
    assert "Fetching [x]" in text
    assert "100%" in text
    assert "\x1b]0;" not in text
