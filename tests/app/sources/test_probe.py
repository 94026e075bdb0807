"""What the interface costs, and the load of a GPU."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from specchat.app.sources.probe import Probe


def nvml(*uuids: str, broken: bool = False) -> ModuleType:
    """A stand-in for the NVML library with these GPUs."""

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
        nvmlDeviceGetHandleByUUID=uuids.index,
        nvmlDeviceGetUtilizationRates=utilization,
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=2.5e9, total=80e9),
    )
    return module


@pytest.mark.parametrize(
    ("library", "text"),
    [
        (nvml("GPU-1a", "GPU-2b"), "41 % · 2.5 GB of 80.0 GB"), (None, ""), (nvml("GPU-2b", broken=True), ""),
    ],
)  # fmt: skip
def test_the_gpu_is_found_among_equals(monkeypatch: pytest.MonkeyPatch, library: ModuleType | None, text: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library)
    probe = Probe()
    assert probe.gpu() == ""
    probe.find_gpu("2b")
    assert probe.gpu() == text
