"""What the interface costs, and the load of a GPU."""

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
    vars(module).update(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(names),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: names[handle],
        nvmlDeviceGetUtilizationRates=utilization,
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=2.5e9, total=80e9),
    )
    return module


@pytest.mark.parametrize(
    ("library", "text"),
    [
        (nvml("NVIDIA T4", "NVIDIA H100"), "41 % · 2.5 of 80 GB"),
        (nvml("NVIDIA T4", b"NVIDIA H100"), "41 % · 2.5 of 80 GB"),
        (None, ""),
        (nvml("NVIDIA T4"), ""),
        (nvml("NVIDIA H100", broken=True), ""),
    ],
)
def test_the_gpu_is_found_by_its_name_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch, library: ModuleType | None, text: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library)
    probe = Probe()
    assert probe.gpu() == ""
    probe.find_gpu("NVIDIA H100")
    assert probe.gpu() == text
