"""The header says when a reply is not the target's exact own."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Static

from tests.app.stage import Stage


@pytest.mark.parametrize(("lenience", "marked"), [(1.0, False), (0.5, True)])
async def test_lenience_is_marked(tmp_path: Path, lenience: float, marked: bool) -> None:
    stage = Stage(tmp_path, lenience=lenience)
    async with stage.app.run_test(size=(80, 24)) as pilot:
        await stage.ready(pilot)
        assert ("lossy" in str(stage.app.screen.query_one("#models", Static).content)) is marked
