"""Torch's library is loaded ahead of its import, which goes on from there."""

from __future__ import annotations

import subprocess
import sys

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
