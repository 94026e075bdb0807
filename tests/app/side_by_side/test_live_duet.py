"""The lanes of a live engine as the app's sources, on a model of random weights."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specchat.app.chat.archive import NoArchive
from specchat.app.chat.reply import Reply
from specchat.app.settings.settings import Settings
from specchat.app.side_by_side.duet import Duet, SideOptions, live_duet
from specchat.app.ui.rendering.reply_notes import note_lines
from specchat.engine import Died, Record, Speedup, message_parts
from tests.app.side_by_side.test_attached_duet import ask, wait


@pytest.fixture
def duet(model: Path) -> Iterator[Duet]:
    settings = Settings(target=str(model), dtype="float32", max_tokens=30)
    duet = live_duet(settings, SideOptions("none", "ngram:gamma=3"))
    duet.connect(NoArchive())
    yield duet
    duet.end()


def test_both_lanes_answer_turn_after_turn(duet: Duet) -> None:
    for turn, prompt in enumerate(("abcabcabc", "the same again")):
        ask(duet, prompt)
        assert duet.comparison.identical
        assert [len(duet.lanes[side].tally.tokens) for side in (0, 1)] == [30, 30]
        assert duet.lanes[1].tally.passes <= 30
        assert [len(conversation.prompts) for conversation in duet.conversations] == [turn + 1] * 2
    assert duet.lanes[0].tally.metrics.reused_tokens == duet.lanes[1].tally.metrics.reused_tokens
    assert duet.gap is None


def test_the_models_own_sampling_is_the_default(tiny_model: Callable[..., Path]) -> None:
    model = tiny_model()
    file = model / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"do_sample": True, "temperature": 0.6, "top_k": 20}))
    duet = live_duet(Settings(target=str(model), dtype="float32", max_tokens=2, top_k=5), SideOptions())
    duet.connect(NoArchive())
    replies = [*ask(duet, "the")]
    duet.regenerate()
    wait(duet, lambda: duet.done and duet.lanes[1].reply is not replies[1])
    left, right, *again = [reply.sampling for reply in (*replies, *(lane.reply for lane in duet.lanes))]
    duet.end()
    assert (left.temperature, left.top_k, left.top_p) == (0.6, 5, 1.0)
    assert right == left
    assert again == [replace(left, seed=left.seed + 1)] * 2
    assert not duet.greedy


def test_the_speedup_is_in_the_summary_alone(duet: Duet) -> None:
    """A lane's own, rounds against plain passes, would be a second one of another definition."""
    ask(duet, "abcabcabc")
    reply = duet.lanes[1].reply
    assert reply is not None
    gain = Speedup(c=0.1, predicted=2.0, measured=1.5, error=0.01, acceptance=1.0, passes=1.0, overhead=0.75)
    in_a_chat = Reply.stored(message_parts("text"), None, list)
    in_a_chat.load()
    reply.figures = in_a_chat.figures = replace(reply.figures, gain=gain)
    assert "faster" not in str(note_lines(reply, 80))
    assert "1.5× faster" in str(note_lines(in_a_chat, 80))


def test_a_model_that_cannot_be_loaded_is_said_once(tmp_path: Path) -> None:
    duet = live_duet(Settings(target=str(tmp_path / "nowhere")), SideOptions())
    duet.connect(NoArchive())
    said: list[Record] = []
    while not any(isinstance(record, Died) for record in said):
        said += duet.drain()
    assert "nowhere" in said[-1].message  # type: ignore[union-attr]
    duet.end()
