"""The presets: complete, consistent, and light to import."""

from __future__ import annotations

import subprocess
import sys

from specchat.engine.models.catalog import PRESETS


def test_each_is_smaller_on_a_cpu_and_reads_no_more_than_itself() -> None:
    for preset in PRESETS.values():
        bits = 8 * preset.weight_bytes(gpu=False) / preset.parameters
        assert 4 < bits < (9.5 if preset.parameters < 10**9 else 6), preset.name
        assert preset.weight_bytes(gpu=False) <= preset.weight_bytes(gpu=True)
        assert 0 < preset.token_bytes(gpu=False) <= preset.weight_bytes(gpu=False)
        assert (preset.tau > 1) == bool(preset.draft)


def test_names_and_stores_load_no_torch() -> None:
    names = ("catalog", "store", "wheel", "hub", "resolve", "checkpoint")
    modules = ", ".join(f"specchat.engine.models.{name}" for name in names)
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
