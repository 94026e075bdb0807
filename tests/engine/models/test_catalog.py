"""The presets: complete, consistent, supported, and light to import."""

import subprocess
import sys

import pytest

from specchat.engine.models.catalog import PRESETS
from specchat.engine.models.packed.decoder_description import FAMILIES


@pytest.mark.parametrize("name", PRESETS)
def test_each_runs_on_the_kernels_of_a_cpu(name: str) -> None:
    assert PRESETS[name].family in FAMILIES


def test_each_is_smaller_on_a_cpu_and_reads_no_more_than_itself() -> None:
    for preset in PRESETS.values():
        bits = 8 * preset.weight_bytes(gpu=False) / preset.parameters
        assert 4 < bits < (9.5 if preset.parameters < 10**9 else 6), preset.name
        assert preset.weight_bytes(gpu=False) <= preset.weight_bytes(gpu=True)
        assert 0 < preset.token_bytes(gpu=False) <= preset.weight_bytes(gpu=False)
        assert preset.weight_bytes(gpu=False) < preset.memory_bytes(gpu=False)
        assert preset.download_bytes(gpu=False) < preset.disk_bytes(gpu=False)
        assert (preset.tau > 1) == bool(preset.draft)


def test_they_are_a_ladder_of_several_families() -> None:
    sizes = [preset.parameters for preset in PRESETS.values()]
    assert sizes[0] < 0.2e9
    for low, high in ((0.6e9, 1e9), (1.5e9, 2.5e9), (3.5e9, 4.7e9), (7e9, 9e9), (20e9, 35e9)):
        assert any(low <= size <= high for size in sizes), (low, high)
    assert len({preset.source.partition("/")[0] for preset in PRESETS.values() if isinstance(preset.source, str)}) >= 3
    mixtures = [preset for preset in PRESETS.values() if preset.experts]
    assert mixtures
    assert all((preset.active or preset.parameters) < preset.parameters / 5 for preset in mixtures)


def test_names_and_stores_load_no_torch() -> None:
    names = ("catalog", "store", "wheel", "hub", "resolve", "checkpoint", "known", "download")
    modules = ", ".join(f"specchat.engine.models.{name}" for name in names)
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
