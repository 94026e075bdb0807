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


def test_names_and_stores_load_no_torch() -> None:
    names = ("catalog", "store", "wheel", "hub", "resolve", "checkpoint", "known", "download")
    modules = ", ".join(f"specchat.engine.models.{name}" for name in names)
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
