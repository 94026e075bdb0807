"""A draft must mean the same tokens as the target; padding tails do not matter, anything else does."""

from typing import Any

import pytest

from specchat.engine import Engine, EngineConfig, EngineError
from specchat.engine.models.tokenizer import check_vocabularies
from tests.engine.tiny import ids_of, said_while_loading, tiny_engine, tiny_model


class Tokenizer:
    """Only what the check looks at."""

    def __init__(self, tokens: dict[str, int]) -> None:
        self._tokens = tokens

    def get_vocab(self) -> dict[str, int]:
        return self._tokens


def vocabulary(size: int, **changed: int) -> Any:
    tokens = {f"t{i}": i for i in range(size) if i not in changed.values()}
    return Tokenizer({**tokens, **changed})


def test_one_may_know_more_at_the_tail() -> None:
    check_vocabularies(vocabulary(100), vocabulary(96), {2}, {2})
    check_vocabularies(vocabulary(96), vocabulary(100), {2}, {2})


def test_the_first_difference_is_named() -> None:
    with pytest.raises(EngineError, match=r"token 7 is 'x' in the draft and 't7' in the target"):
        check_vocabularies(vocabulary(100), vocabulary(100, y=9, x=7), {2}, {2})


def test_vocabularies_that_hardly_meet_are_refused() -> None:
    far = Tokenizer({f"t{i}": i for i in range(50, 150)})
    with pytest.raises(EngineError, match="they share 50 token ids of 100 and 100"):
        check_vocabularies(vocabulary(100), far, {60}, {60})


def test_replies_must_end_alike() -> None:
    with pytest.raises(EngineError, match=r"ends its replies with 't3' and the target with 't2'"):
        check_vocabularies(vocabulary(100), vocabulary(100), {2}, {3})


@pytest.mark.parametrize(("target_size", "draft_size"), [(151_936, 152_064), (152_064, 151_936)])
def test_padded_widths_of_one_family_draft_for_each_other(target_size: int, draft_size: int) -> None:
    """As Qwen2.5's: what the draft has beyond the target is never drafted, what it lacks has probability 0."""
    from specchat.engine import Sampling
    from tests.engine.tiny import ask

    target, draft = (tiny_model(seed=seed, width=size) for seed, size in ((0, target_size), (9, draft_size)))
    with tiny_engine(target, draft=draft) as engine:
        for sampling in (Sampling(), Sampling(temperature=1.0, seed=1)):
            events = list(engine.stream(ask("abc", drafter="model", gamma=3, max_tokens=12, sampling=sampling)))
            assert ids_of(events)
            if sampling.greedy:
                plain = list(engine.stream(ask("abc", drafter="none", max_tokens=12)))
                assert ids_of(events) == ids_of(plain)


def test_a_draft_that_is_no_smaller_than_its_target_is_warned_of() -> None:
    with tiny_engine(tiny_model(), draft=tiny_model(seed=3, hidden=64)) as engine:
        notices = said_while_loading(engine)
    assert len(notices) == 1
    assert "is not smaller than the target" in notices[0]


@pytest.mark.model
def test_a_draft_of_another_family_is_refused_when_loading(default_model: Any, tiny_model: Any) -> None:
    from specchat.engine import models_folder

    engine = Engine(EngineConfig(str(default_model), models_folder(), draft=str(tiny_model())))
    engine.start()
    with pytest.raises(EngineError, match="the draft's vocabulary is not the target's: token"):
        engine.wait_ready(120)
    engine.close()
