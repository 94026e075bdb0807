"""The shipped prompt sets."""

import pytest

from specchat.engine.errors import EngineError
from specchat.engine.sequence.grammar import check_constraint
from specchat.engine.tools.runner import CONSTRAINED, SETS, Prompt, PromptSet, load_prompts


@pytest.mark.parametrize("name", SETS)
def test_each_set_has_12_to_20_different_prompts(name: str) -> None:
    (prompts,) = load_prompts([name])
    assert prompts.name == name
    assert 12 <= len(prompts.prompts) <= 20
    assert len(set(prompts.prompts)) == len(prompts.prompts)
    assert all(prompt.text for prompt in prompts.prompts)


def test_replies_of_one_set_follow_schemas() -> None:
    (prompts,) = load_prompts([CONSTRAINED])
    assert len(prompts.prompts) == 10
    for prompt in prompts.prompts:
        assert prompt.constraint is not None
        check_constraint(prompt.constraint)


def test_waves_fill_whole_batches_from_the_start_again() -> None:
    prompts = PromptSet("x", tuple(Prompt(str(i)) for i in range(3)))
    assert [prompt.text for prompt in prompts.waves(2)] == ["0", "1", "2", "0"]
    assert [prompt.text for prompt in prompts.waves(4)] == ["0", "1", "2", "0"]
    assert [prompt.text for prompt in prompts.first(2).waves(1)] == ["0", "1"]


def test_an_unknown_set_is_refused() -> None:
    with pytest.raises(EngineError, match="'poems' is not known: choose one of chat, code, copy, structured, schemas"):
        load_prompts(["chat", "poems"])
