"""A reply that begins with given tokens continues as if it had generated them, from the cache where possible."""

from dataclasses import replace

import pytest

from specchat.engine import FinishReason, Sampling
from tests.engine.tiny import (
    admitted,
    ask,
    ids_of,
    rounds_of,
    text_of,
    tiny_engine,
    tiny_head,
    tiny_model,
    tiny_tokenizer,
)


@pytest.mark.parametrize("drafter", ["none", "ngram", "head"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(presence_penalty=1.5)], ids=["greedy", "penalty"])
def test_the_rest_is_the_same_token_for_token(drafter: str, sampling: Sampling) -> None:
    target = tiny_model()
    heads = {"head": tiny_head(target)} if drafter == "head" else {}
    whole = ask("one two one two", drafter=drafter, gamma=3, sampling=sampling, max_tokens=24)
    with tiny_engine(target, **heads) as engine:  # type: ignore[arg-type]
        ids = ids_of(engine.stream(whole))
        for length in (1, 5, 23):
            rest = replace(whole, request_id=f"r{length}", reply_ids=tuple(ids[:length]), max_tokens=24 - length)
            events = list(engine.stream(rest))
            assert ids_of(events) == ids[length:]
            assert [token.id for token in admitted(events).given] == ids[:length]
            assert admitted(events).reused_tokens >= admitted(events).prompt_tokens - 2


def test_its_text_is_whole_across_the_seam() -> None:
    with tiny_engine(tiny_model()) as engine:
        whole = list(engine.stream(ask("é€😀" * 3, max_tokens=40)))
        ids = ids_of(whole)
        for length in range(1, 40, 3):
            request = ask("é€😀" * 3, f"r{length}", reply_ids=tuple(ids[:length]), max_tokens=40 - length)
            events = list(engine.stream(request))
            assert "".join(token.text for token in admitted(events).given) + text_of(events) == text_of(whole)


def test_a_text_may_stand_behind_the_ids() -> None:
    with tiny_engine(tiny_model()) as engine:
        ids = tuple(tiny_tokenizer().encode("h"))
        events = list(engine.stream(ask("hello", reply_ids=ids, reply_text="ey", max_tokens=24)))
        assert "".join(token.text for token in admitted(events).given) == "hey"
        assert len(rounds_of(events)) > 0


def test_stop_strings_are_looked_for_in_what_is_new_only() -> None:
    with tiny_engine(tiny_model()) as engine:
        events = list(engine.stream(ask("hello", reply_text="stop", stop=("stop",), max_tokens=24)))
        assert ids_of(events)


def test_a_stop_string_that_the_tail_completes_is_the_reason() -> None:
    """The last token is the first byte of a character, which at the end of the reply has the text of U+FFFD."""
    half, unknown = tiny_tokenizer().convert_tokens_to_ids("â"), "\N{REPLACEMENT CHARACTER}"
    sampling = Sampling(logit_bias=((half, 100.0),))
    with tiny_engine() as engine:
        for stop, reason, tail in ((unknown, FinishReason.STOP, ""), ("x", FinishReason.LENGTH, unknown)):
            events = list(engine.stream(ask("hello", max_tokens=1, stop=(stop,), sampling=sampling)))
            assert (events[-1].reason, events[-1].tail) == (reason, tail)
