"""What the interface costs, and how busy a GPU is where there is one."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from specchat.app.sources.probe import Probe


def nvml(*names: str | bytes, broken: bool = False) -> ModuleType:
    """A stand-in for the NVML library with GPUs of these names."""

    class NVMLError(Exception):
        pass

    def utilization(handle: int) -> SimpleNamespace:
        if broken:
            raise NVMLError
        return SimpleNamespace(gpu=40 + handle)

    module = ModuleType("pynvml")
    module.NVMLError = NVMLError  # type: ignore[attr-defined]
    module.nvmlInit = lambda: None  # type: ignore[attr-defined]
    module.nvmlDeviceGetCount = lambda: len(names)  # type: ignore[attr-defined]
    module.nvmlDeviceGetHandleByIndex = lambda index: index  # type: ignore[attr-defined]
    module.nvmlDeviceGetName = lambda handle: names[handle]  # type: ignore[attr-defined]
    module.nvmlDeviceGetUtilizationRates = utilization  # type: ignore[attr-defined]
    module.nvmlDeviceGetMemoryInfo = lambda _: SimpleNamespace(used=2.5e9, total=80e9)  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize("name", ["NVIDIA H100", b"NVIDIA H100"])
def test_the_gpu_of_the_models_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch, name: str | bytes) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml("NVIDIA T4", name))
    probe = Probe()
    assert probe.gpu() == ""
    probe.find_gpu("NVIDIA H100")
    assert probe.gpu() == "41 % · 2.5 of 80 GB"


def test_without_the_library_or_the_device_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = Probe()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    probe.find_gpu("NVIDIA H100")
    assert probe.gpu() == ""
    monkeypatch.setitem(sys.modules, "pynvml", nvml("NVIDIA T4"))
    probe.find_gpu("NVIDIA H100")
    assert probe.gpu() == ""
    monkeypatch.setitem(sys.modules, "pynvml", nvml("NVIDIA T4", broken=True))
    probe.find_gpu("NVIDIA T4")
    assert probe.gpu() == ""


def test_the_share_of_the_thread_that_asks() -> None:
    probe = Probe()
    assert probe.interface() is None
    assert sum(range(300_000))
    share = probe.interface()
    assert share is not None
    assert share > 0
