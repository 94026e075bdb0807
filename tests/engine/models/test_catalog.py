"""The presets: complete, consistent, and light to import."""

from __future__ import annotations

import subprocess
import sys

from specchat.engine.models.catalog import PRESETS


def test_a_draft_is_a_smaller_preset() -> None:
    drafted = [preset for preset in PRESETS.values() if preset.draft]
    assert {"llama-3.2-3b", "qwen3-8b", "smollm2-1.7b"} <= {preset.name for preset in drafted}
    for preset in drafted:
        assert preset.draft is not None
        assert PRESETS[preset.draft].parameters < preset.parameters


def test_names_and_stores_load_no_torch() -> None:
    names = ("catalog", "store", "wheel", "hub", "resolve", "checkpoint")
    modules = ", ".join(f"specchat.engine.models.{name}" for name in names)
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
