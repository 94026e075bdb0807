"""Programs that end without closing their engine, whatever its thread is doing: they must not abort."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REPEATS = 10
BEGINNING = """if True:
    import sys
    from specchat.engine import Admitted, Engine, EngineConfig, EngineError, Loading, Outbox, Request
    def wait_for(box, wanted):
        while not wanted(box.get(60)):
            pass
"""
PROGRAMS = {
    "computing": """
    engine, box = Engine(EngineConfig("smollm2-135m")), Outbox()
    engine.start()
    engine.submit(Request("long", prompt="one two three " * 500), box)
    wait_for(box, lambda event: isinstance(event, Admitted))
""",
    "importing": """
    engine = Engine(EngineConfig("smollm2-135m"))
    engine.start()
""",
    "loading": """
    engine = Engine(EngineConfig(sys.argv[1], quantize="none"))
    engine.start()
    wait_for(engine.outbox, lambda event: isinstance(event, Loading) and event.stage == "target")
""",
    "packing": """
    engine = Engine(EngineConfig(sys.argv[1], quantize="q4"))
    engine.start()
    wait_for(engine.outbox, lambda event: isinstance(event, Loading) and event.text.startswith("Packing"))
""",
    "failed": """
    engine = Engine(EngineConfig("smollm2-135m", context=100_000_000, device="cpu"))
    engine.start()
    try:
        engine.wait_ready(60)
    except EngineError:
        pass
""",
    "preloading": """
    from specchat.engine import preload_torch
    preload_torch()
""",
}


def end(program: str, home: Path, model: Path) -> tuple[int, str]:
    """Exit code and stderr of a program."""
    environment = os.environ | {"SPECCHAT_HOME": str(home), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "scripts")}
    command = [sys.executable, "-c", BEGINNING + PROGRAMS[program], str(model)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stderr


def home(folder: Path, default_model: Path) -> Path:
    """A home with the default model alone."""
    models = folder / "models"
    (models / "packed").mkdir(parents=True)
    for model in (default_model, default_model.parent / "packed" / f"{default_model.name}.gguf"):
        (models / model.relative_to(default_model.parent)).symlink_to(model)
    return folder


@pytest.mark.model
def test_a_program_may_end_while_its_engine_computes(tmp_path: Path, default_model: Path) -> None:
    assert end("computing", home(tmp_path, default_model), default_model) == (0, "")


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_may_always_end(tmp_path: Path, default_model: Path, program: str) -> None:
    place = home(tmp_path, default_model)
    assert [end(program, place, default_model) for _ in range(REPEATS)] == [(0, "")] * REPEATS
