"""Torch's library is loaded ahead of its import, and what the import leaves is not collected again and again."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys, threading
from pathlib import Path
from specchat.engine import preload_torch
preload_torch()
for thread in threading.enumerate():
    if thread.name == "preload":
        thread.join()
assert "torch" not in sys.modules
assert "libtorch_cpu" in Path("/proc/self/maps").read_text()
import torch
print(torch.ones(3).sum().item())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux")
def test_torch_works_behind_its_preloaded_library() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "3.0\n"), done.stderr


START = """
import gc
from pathlib import Path
from specchat.engine import Engine, EngineConfig, EngineError
engine = Engine(EngineConfig("no such model", models=Path("nowhere")))
engine.start()
try:
    engine.wait_ready()
except EngineError:
    pass
assert gc.isenabled()
print(gc.get_freeze_count() > 10_000)
"""


def test_a_first_start_leaves_torch_out_of_garbage_collection(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
