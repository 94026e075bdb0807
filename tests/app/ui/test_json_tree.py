"""The JSON of a reply as a tree: its text until it is complete, then its values, which fold."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Static, Tree

from specchat.app.ui.screens.json_tree import JsonScreen
from specchat.engine import JSON_OBJECT, Fate, Record, Round
from specchat.engine.events import Admitted
from tests.app.recorded import trace
from tests.app.stage import Stage, run
from tests.app.views import WIDE

pytestmark = pytest.mark.slow
MEETING = {
    "title": "Where to go in Lisbon [red]",
    "participants": [{"name": "Ana", "is_required": True}, {"name": "Łukasz\x1b[2J", "is_required": False}],
    "room": None,
    "duration_minutes": 45,
    "notes": "Two days are enough for the old town, the river and a tram. " * 3 + "\nBring shoes.",
    "tags": [],
}


def recorded(text: str) -> list[Record]:
    """A trace whose replies are this text under a schema, a few characters per round."""
    records: list[Record] = []
    for record in trace("chat"):
        if isinstance(record, Admitted):
            records.append(replace(record, constraint=JSON_OBJECT))
            left = text
        elif not isinstance(record, Round):
            records.append(record)
        elif left:
            plain = replace(record, drafted=(), p=(), q=(), u=(), beta=(), accepted=0, pieces=(), detail=())
            said, left = left[:12], left[12:]
            records.append(replace(plain, last_fate=Fate.PLAIN, last_piece=said, proposers=(), refused=()))
    return records


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, records=recorded(json.dumps(MEETING, ensure_ascii=False)))


async def answered(stage: Stage, pilot: Pilot[None], count: int | None = None) -> None:
    await stage.ready(pilot)
    await stage.answer(pilot, count)


def test_looks(snap_compare: Callable[..., bool], stage: Stage) -> None:
    before = run(stage, answered, "ctrl+l", "v", *["down"] * 8)
    assert snap_compare(stage.app, terminal_size=WIDE, run_before=before)


def tree_of(stage: Stage) -> Tree[Any]:
    return stage.app.screen.query_one(Tree)


async def test_the_text_becomes_a_tree_when_it_is_complete(stage: Stage) -> None:
    async with stage.after(partial(answered, count=14)) as pilot:
        await stage.send(pilot, "/tree")
        screen = stage.app.screen
        assert isinstance(screen, JsonScreen)
        assert '{"title": "Where to go' in str(screen.query_one("#json-text", Static).render())
        assert not tree_of(stage).display
        await stage.give(pilot)
        await stage.comes(pilot, lambda: tree_of(stage).display)
        labels = [str(line.node.label) for line in tree_of(stage)._tree_lines]
        assert labels[:4] == ["reply  {6}", 'title  "Where to go in Lisbon [red]"', "participants  [2]", "0  {2}"]
        assert not any("\x1b" in label for label in labels)
        await stage.press(pilot, "down", "down", "space")
        assert len(tree_of(stage)._tree_lines) == len(labels) - 6
        assert await stage.press(pilot, "v") is stage.app.chat_screen


@pytest.mark.parametrize("text", ["Two days are enough.", '{"title": "Where'])
async def test_other_texts_have_no_tree(tmp_path: Path, text: str) -> None:
    stage = Stage(tmp_path, records=recorded(text))
    async with stage.after(answered) as pilot:
        assert "this reply is no complete JSON" in await stage.send(pilot, "/tree")


async def test_deep_values_are_shown_up_to_a_depth(tmp_path: Path) -> None:
    stage = Stage(tmp_path, records=recorded("[" * 300 + "]" * 300))
    async with stage.after(answered) as pilot:
        await stage.send(pilot, "/tree")
        assert 40 < len(tree_of(stage)._tree_lines) < 60
