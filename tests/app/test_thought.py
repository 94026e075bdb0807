"""Thinking in a reply: which tokens it takes, what is answered after it, and the acceptance on both sides."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from specchat.app.chat.conversation import Conversation, Turn
from specchat.app.chat.exchange import as_json, as_markdown
from specchat.app.chat.reply import Reply
from specchat.engine import Admitted, Fate, Finished, FinishReason, Record, Round, Thinking, to_json
from tests.app.recorded import events_of_requests, replied
from tests.app.thinking import MARKERS, thinking_trace

BEGUN = Thinking("<think>", "</think>", True)


def reply_of(records: list[Record], upto: int | None = None) -> Reply:
    """The first reply of a trace, after so many of its records."""
    return replied(events_of_requests(records)[0][:upto])


def written(pieces: Iterable[str], markers: Thinking | None = MARKERS) -> Reply:
    """A reply of plain tokens with these texts."""
    template = next(record for record in thinking_trace() if isinstance(record, Round))
    said = (replace(template, number=n, last_piece=piece, at=n + 1.0) for n, piece in enumerate(pieces))
    return replied([Admitted("r", 3, 0, 0.0, 0.0, thinking=markers), *said])


def shown(reply: Reply) -> tuple[str, str]:
    """The emitted text that belongs to the thinking, and the rest, token by token."""
    texts = {True: "", False: ""}
    for index, record in enumerate(reply.rounds):
        for number, token in enumerate(record.tokens(), reply.starts[index]):
            if token.fate not in (Fate.REJECTED, Fate.DISCARDED):
                texts[reply.thought.holds(number)] += token.text
    return texts[True], texts[False]


@pytest.mark.parametrize("markers", [MARKERS, BEGUN, Thinking("<|a|>x<|b|>", "<|end|><|a|>y", False)])
def test_every_token_is_thinking_or_answer_however_far_the_reply_has_got(markers: Thinking) -> None:
    records = thinking_trace(markers=markers)
    whole = reply_of(records)
    thought, answer = whole.thought.split(whole.text)
    assert thought.startswith("In Lisbon")
    assert answer
    assert whole.answer == answer
    for upto in range(2, 80):
        reply = reply_of(records, upto)
        inside, outside = shown(reply)
        assert whole.text.startswith(inside + outside)
        assert answer.startswith(outside.lstrip())
        assert reply.thought.running is (bool(inside) and markers.closing not in inside)
    figures = whole.figures.thought
    assert not whole.thought.running
    assert 0 < figures.seconds < whole.metrics.seconds + 1
    assert (sum(figures.accepted), sum(figures.tested)) == (whole.metrics.accepted, whole.metrics.tested)
    assert all(figures.tested)


def test_markers_may_be_spread_over_tokens_and_share_them_with_the_text() -> None:
    reply = written(["\n<", "thi", "nk>Hm", ".", "</th", "ink", ">\n", "\n", "Yes", " </think> no"])
    assert shown(reply) == ("\n<think>Hm.</think>\n\n", "Yes </think> no")
    assert reply.thought.split(reply.text) == ("Hm.", "Yes </think> no")
    reply.take_figures()
    assert reply.figures.thought.tokens == 8
    assert not reply.thought.running


@pytest.mark.parametrize("markers", [MARKERS, None])
@pytest.mark.parametrize("text", ["<thing> is a tag", "The tag <think> is one</think>.", "  <thin"])
def test_what_does_not_begin_with_the_marker_is_no_thinking(text: str, markers: Thinking | None) -> None:
    reply = written(list(text), markers)
    assert not reply.thought.there
    assert reply.answer == text
    reply.take_figures()
    assert reply.figures.thought is None


def test_a_stored_reply_knows_its_thinking_and_one_that_broke_off_inside_has_no_answer() -> None:
    live = written(["<think>", "Hm.", "</think>", "Yes"])
    lines = [to_json(Admitted("r", 3, 0, 0.0, 0.0, thinking=MARKERS)), *map(to_json, live.rounds)]
    lines.append(to_json(Finished("r", FinishReason.EOS, "", "", 9.0)))
    assert Reply.stored(live.text, "eos", lambda: lines).answer == "Yes"
    broken = written(["<think>", "Hm."])
    assert (broken.answer, broken.thought.split(broken.text)) == ("", ("Hm.", ""))


def test_copies_and_markdown_are_without_it_and_json_and_the_model_get_all() -> None:
    reply = written(["<think>", "Hm.\nWell.", "</think>", "Yes"])
    conversation = Conversation(turns=[Turn("So?", reply)])
    assert conversation.last_text() == "Yes"
    assert "Hm." not in as_markdown(conversation, "m")
    assert "> Hm.\n> Well.\n\nYes" in as_markdown(conversation, "m", thinking=True)
    assert '"text": "<think>Hm.\\nWell.</think>Yes"' in as_json(conversation, "m")
    assert conversation.messages_with("And?")[1].content == "<think>Hm.\nWell.</think>Yes"
