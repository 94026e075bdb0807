"""Text that steers a terminal reaches none: the scenes of the stress run, one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stress import hostile

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(hostile.reply, marks=pytest.mark.slow),
        pytest.param(hostile.replay, marks=pytest.mark.slow),
        hostile.stored_chat,
        hostile.settings_and_notices,
        hostile.printed_reply,
        hostile.exported,
        hostile.listed,
        hostile.named_file,
        hostile.named_model,
        hostile.screenshot,
    ],
    ids=lambda scene: scene.__name__,
)
def test_none_of_it_arrives_raw(scene: hostile.Scene, tmp_path: Path) -> None:
    where = tmp_path / hostile.FILE_NAME
    where.mkdir()
    assert hostile.found_in(scene(tmp_path / "home", where).written) == []


@pytest.mark.parametrize("piece", hostile.PIECES)
def test_what_arrives_raw_would_be_found(piece: str) -> None:
    if "[/" in piece or "[red" in piece or "[@" in piece or "\\[" in piece or "[link" in piece:
        pytest.skip("markup steers no terminal: it would change the colours, or end the app")
    assert hostile.found_in(piece.encode())
