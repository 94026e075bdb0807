"""A conversation that does not fit into the context is told without some of its turns, if the request allows that."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from specchat.engine import (
    Admitted,
    Engine,
    EngineError,
    Finished,
    FinishReason,
    Message,
    Request,
    from_json,
    to_json,
)
from tests.engine.tiny import tiny_engine, tiny_model

CONTEXT = 256
TURNS = 12
MESSAGES = (
    Message("system", "be brief"),
    *(
        message
        for number in range(TURNS - 1)
        for message in (
            Message("user", f"question {number}"),
            Message("assistant", f"answer {number}" * (1 + number % 3)),
        )
    ),
    Message("user", "the last question"),
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with tiny_engine(replace(tiny_model(), context=CONTEXT)) as running:
        yield running


def ask(engine: Engine, request: Request) -> tuple[Admitted | None, Finished]:
    events = list(engine.stream(request))
    finished = events[-1]
    assert isinstance(finished, Finished)
    return next((event for event in events if isinstance(event, Admitted)), None), finished


@pytest.mark.parametrize(("when_full", "first"), [("drop-oldest", 1), ("keep-ends", 3)])
def test_turns_are_left_out_until_half_the_room_is_free_and_said(engine: Engine, when_full: str, first: int) -> None:
    admitted, finished = ask(engine, Request("r", MESSAGES, max_tokens=8, when_full=when_full))
    assert finished.reason is not FinishReason.ERROR
    gone = admitted.left_out
    assert gone == tuple(range(first, first + len(gone)))
    assert 2 <= len(gone) == len(gone) // 2 * 2 < len(MESSAGES) - 3
    whole, few, fewer = (_length(engine, range(first, first + count)) for count in (0, len(gone), len(gone) - 2))
    step = (CONTEXT - 8) // 2
    least = -(-(whole - CONTEXT + 8) // step) * step
    assert few == admitted.prompt_tokens <= whole - least < fewer
    assert from_json(to_json(admitted)) == admitted


@pytest.mark.parametrize("when_full", ["drop-oldest", "keep-ends"])
def test_of_a_full_chat_only_what_is_new_is_read(engine: Engine, when_full: str) -> None:
    request = Request("r", MESSAGES, max_tokens=8, when_full=when_full)
    before, _ = ask(engine, request)
    longer = (*MESSAGES, Message("assistant", "so"), Message("user", "and?"))
    after, _ = ask(engine, replace(request, messages=longer))
    assert after.left_out == before.left_out != ()
    assert after.reused_tokens >= before.prompt_tokens - 1


def test_fewer_turns_than_half_the_room_are_left_out_if_that_is_all(engine: Engine) -> None:
    short = tuple(Message(role, "ab") for _ in range(2) for role in ("user", "assistant"))
    messages = (*short, Message("user", "z" * 200))
    admitted, _ = ask(engine, Request("r", messages, max_tokens=8, when_full="drop-oldest"))
    assert admitted.left_out == (0, 1)


def _length(engine: Engine, gone: range, messages: tuple[Message, ...] = MESSAGES) -> int:
    kept = tuple(message for place, message in enumerate(messages) if place not in gone)
    return len(engine.prompt_ids(Request("count", kept)))


def test_stop_refuses_and_says_so(engine: Engine) -> None:
    admitted, finished = ask(engine, Request("r", MESSAGES))
    assert admitted is None
    assert f"the context holds {CONTEXT}" in finished.message
    assert "alt+c: drop-oldest or keep-ends" in finished.message


@pytest.mark.parametrize(("when_full", "kept"), [("drop-oldest", 0), ("keep-ends", 2)])
def test_all_turns_that_may_be_left_out_are_where_none_fits(engine: Engine, when_full: str, kept: int) -> None:
    first = (Message("user", "a"), Message("assistant", "b"))[:kept]
    long, last = (Message("user", "x" * CONTEXT), Message("assistant", "y")), Message("user", "z" * 40)
    admitted, _ = ask(engine, Request("r", (*first, *long, last), max_tokens=8, when_full=when_full))
    assert admitted.left_out == (kept, kept + 1)
    assert admitted.prompt_tokens == len(engine.prompt_ids(Request("count", (*first, last))))


def test_a_last_turn_that_is_too_long_by_itself_is_refused(engine: Engine) -> None:
    messages = (*MESSAGES[:-1], Message("user", "many words " * CONTEXT))
    _, finished = ask(engine, Request("r", messages, when_full="drop-oldest"))
    assert finished.reason is FinishReason.ERROR


def test_what_fits_is_told_whole_and_the_reply_gets_a_quarter_of_the_context_at_most(engine: Engine) -> None:
    lengths = [len(engine.prompt_ids(Request("count", MESSAGES[-1 - 2 * turns :]))) for turns in range(TURNS)]
    most = max(turns for turns, length in enumerate(lengths) if length <= CONTEXT - CONTEXT // 4)
    for turns in (most, most + 1):
        request = Request("r", MESSAGES[-1 - 2 * turns :], max_tokens=CONTEXT, when_full="drop-oldest")
        admitted, _ = ask(engine, request)
        assert bool(admitted.left_out) is (turns > most)
    assert all(shorter < longer for shorter, longer in pairwise(lengths))


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(EngineError, match="when-full 'forget' is not known: choose one of stop, drop-oldest"):
        Request("r", MESSAGES, when_full="forget")
