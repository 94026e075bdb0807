"""What the target is asked while it writes training text."""

from __future__ import annotations

from specchat.engine.runner.model_runner import ModelRunner
from specchat.engine.tools.distill.rollout import Rollout
from tests.engine.tiny import tiny_model


def test_every_prompt_is_answered_once_before_any_is_again() -> None:
    target = ModelRunner(tiny_model().model, slots=1, context=8, overhang=0, taps=(0, 1))
    prompts = [[5, 6, number] for number in range(20, 27)]
    rollout = Rollout(target, None, frozenset(), prompts, seed=3)
    answered: list[list[int]] = []
    while len(answered) < 2 * len(prompts):
        answered += [talk.tokens[:3].tolist() for talk in rollout.step()]
    for passed in (answered[:7], answered[7:]):
        assert sorted(passed) == prompts
