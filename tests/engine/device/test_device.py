"""Devices, their memory, the number type that suits them, and the loading of torch."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specchat.engine.device.device import available_memory, held_memory, pick_device, require_memory, unused_gpu
from specchat.engine.errors import EngineError
from specchat.engine.models.load import pick_dtype
from tests.engine.pretend_cuda import GPU, pretended_gpu
from tests.failing import fails

CPU = torch.device("cpu")


def test_devices_of_a_machine_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == pick_device("cpu") == CPU
    for name in ("cuda", "cuda:1"):
        with pytest.raises(EngineError, match=f"device '{name}' cannot be used because"):
            pick_device(name)


@pytest.mark.parametrize(
    "error",
    [
        "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
        "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver",
    ],
)
def test_why_a_gpu_is_not_used_is_said_in_a_sentence(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", fails(RuntimeError(error)))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/nvidia-smi")
    reason = re.escape(error.split(". ")[0])
    with pytest.raises(EngineError, match=rf"^device 'cuda' cannot .* \({reason}\): choose auto or cpu$"):
        pick_device("cuda")
    assert re.search(rf"^the GPU is not used .* \({reason}\): models run on the CPU$", str(unused_gpu()))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert unused_gpu() is None


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_a_failing_gpu_is_refused_and_the_cpu_offered(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error = "CUDA error: no kernel image is available for execution on the device"
    with pretended_gpu(monkeypatch):
        assert pick_device(name) == GPU
        debugging = "\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
        monkeypatch.setattr(torch, "ones", fails(RuntimeError(error + debugging)))
        with pytest.raises(EngineError, match=rf"^cuda:0 cannot be used \({error}\): free it, or choose --device cpu$"):
            pick_device(name)


def test_a_model_that_is_too_large_for_a_gpu_is_refused_and_the_cpu_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_gpu(monkeypatch):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (4 << 30, 4 << 30))
        with pytest.raises(
            EngineError, match=r"needs 8\..* the GPU has 4\..*: close .* --quantize q4 or --device cpu$"
        ):
            require_memory(GPU, 8 << 30, "the model")


def test_devices_of_a_machine_with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_gpu(monkeypatch):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        assert pick_device("auto") == pick_device("cuda") == torch.device("cuda", 0)
        assert pick_device("cuda:1") == torch.device("cuda", 1)
        with pytest.raises(EngineError, match="this machine has cuda:0 to cuda:1"):
            pick_device("cuda:2")


@pytest.mark.parametrize("name", ["gpu", "", "mps", "meta", "cuda:x"])
def test_devices_that_mean_nothing(name: str) -> None:
    with pytest.raises(EngineError, match=f"device '{name}' is not (known|supported)"):
        pick_device(name)


def test_number_types(tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_model()
    gpu = torch.device("cuda", 0)
    assert pick_dtype("float16", CPU, folder) == torch.float16
    for fast, on_cpu, on_gpu in ((True, torch.bfloat16, torch.bfloat16), (False, torch.float32, torch.float16)):
        monkeypatch.setattr("specchat.engine.models.load.computes_bfloat16", lambda _, fast=fast: fast)
        assert pick_dtype("auto", CPU, folder) == on_cpu
        assert pick_dtype("auto", gpu, folder) == on_gpu
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"model_type": "llama"', '"model_type": "gemma3_text"'))
    assert pick_dtype("auto", gpu, folder) == torch.float32, "its hidden states overflow in float16"
    half = tiny_model(dtype=torch.float16)
    assert pick_dtype("auto", gpu, half) == torch.float16
    assert pick_dtype("auto", CPU, half) == torch.float32
    with pytest.raises(EngineError, match="dtype 'int8' is not known"):
        pick_dtype("int8", CPU, folder)


def test_memory_that_cannot_be_known_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match=r"the model needs 1000000\.0 GB of memory and this machine has"):
        require_memory(CPU, 10**15, "the model")
    monkeypatch.setattr("specchat.engine.device.device.psutil", None)
    assert available_memory(CPU) is held_memory(CPU) is None
    require_memory(CPU, 10**15, "the model")


PROGRAM = """
import sys, threading
from pathlib import Path
from specchat.engine import preload_torch
preload_torch()
for thread in threading.enumerate():
    if thread.name == "preload":
        thread.join(60)
assert "torch" not in sys.modules
assert "libtorch_cpu" in Path("/proc/self/maps").read_text()
import torch
print(torch.ones(3).sum().item())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux")
def test_torch_works_behind_its_preloaded_library() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "3.0\n"), done.stderr
