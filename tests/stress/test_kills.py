"""One kill of each scene; 100 of them are `python -m tests.stress --part kills`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from specchat.app.storage.store import Store
from specchat.engine import to_json
from tests.stress import kills
from tests.stress.numbered import numbered, word
from tests.stress.session import lost


@pytest.mark.parametrize(
    "scene",
    [
        kills.one_chat,
        pytest.param(kills.four_chats, marks=pytest.mark.slow),
        pytest.param(kills.four_candidates, marks=pytest.mark.slow),
        kills.stepping,
        pytest.param(kills.real_model, marks=[pytest.mark.slow, pytest.mark.model]),
    ],
    ids=lambda scene: scene.__name__,
)
def test_nothing_that_was_on_screen_is_lost(scene: kills.Scene, tmp_path: Path) -> None:
    assert scene(tmp_path, random.Random(7)) == []


def test_a_loss_would_be_seen(tmp_path: Path) -> None:
    with Store(tmp_path / "data" / "specchat.db") as store:
        chat = store.create_chat("Question-0")
        prompt = store.add_message(chat.id, "user", "Question-0")
        reply = store.add_message(chat.id, "assistant", "", parent=prompt)
        for number in (0, 1):
            store.append_rounds(reply, f"and {word(number)}", [to_json(numbered("r", number, 1, 0.0, word(number)))])
        assert lost(tmp_path, ["Question-0"], 1) == []
        assert lost(tmp_path, ["Question-0"], 2) == ["round 2 was on screen, round 1 is the last that is stored"]
        assert lost(tmp_path, ["Question-0", "Question-1"], 1) != []
        store.append_rounds(reply, f"and {word(3)}", [to_json(numbered("r", 3, 1, 0.0, word(3)))])
        assert lost(tmp_path, ["Question-0"], 1) == ["0-1, 3-3 of 3 stored rounds do not make the stored text"]
