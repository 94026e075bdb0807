"""Versions, the device, its copy bandwidth and its speed in matrix products."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import torch
from torch.utils.benchmark import Timer

from benchmarks.gpu_day.section import Row
from specchat.engine.device.device import pick_device
from specchat.engine.tools.bench.figures import copy_bandwidth

_SECONDS = 0.5


def rows() -> Iterator[Row]:
    """Versions and speeds."""
    device = pick_device("auto")
    yield {"what": "versions", "python": platform.python_version(), **_versions(), "CUDA": torch.version.cuda}
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        yield {"what": about.name, "memory GB": about.total_memory / 1e9, "driver": _driver()}
    else:
        yield {"what": "no GPU: small shapes run on the CPU"}
    yield {"what": "copy bandwidth", "GB/s": copy_bandwidth(device) / 1e9}
    size = 8192 if device.type == "cuda" else 512
    for dtype in (torch.bfloat16, torch.float32):
        yield {"what": f"product of {size} x {size} in {dtype}", "TFLOP/s": _product(size, dtype, device) / 1e12}


def _versions() -> dict[str, str]:
    found = {}
    for package in ("torch", "transformers", "triton"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _driver() -> str:
    if not shutil.which("nvidia-smi"):
        return "unknown"
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n")[0]


def _product(size: int, dtype: torch.dtype, device: torch.device) -> float:
    """Operations per second."""
    blocks = {name: torch.randn(size, size, dtype=dtype, device=device) for name in "ab"}
    timer = Timer("a @ b", globals=blocks, num_threads=torch.get_num_threads())
    return 2 * size**3 / timer.blocked_autorange(min_run_time=_SECONDS).median
