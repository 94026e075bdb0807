"""What the target is asked while it writes training text."""

from __future__ import annotations

import torch

from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.tools.distill.corpus import Conversation
from specchat.engine.tools.distill.rollout import Rollout, Script
from tests.engine.tiny import tiny_model


def test_every_prompt_is_answered_once_before_any_is_again() -> None:
    target = TransformersBackend(tiny_model().model, slots=1, context=8, overhang=0, taps=(0, 1))
    prompts = [(5, 6, number) for number in range(20, 27)]
    rollout = Rollout(target, None, frozenset(), [Script(prompt) for prompt in prompts], torch.float32, seed=3)
    answered: list[tuple[int, ...]] = []
    while len(answered) < 2 * len(prompts):
        answered += [tuple(talk.tokens[:3].tolist()) for talk in rollout.step()]
    for passed in (answered[:7], answered[7:]):
        assert sorted(passed) == prompts


def test_the_turns_of_a_script_are_asked_one_after_the_other() -> None:
    target = TransformersBackend(tiny_model().model, slots=2, context=40, overhang=0, taps=(0, 1))
    ends = frozenset(range(0, target.vocabulary, 2))  # every other token ends a turn
    script = Script((5, 7, 9), ((11, 13), (15, 17)))
    rollout = Rollout(target, None, ends, [script], torch.float32, seed=1)
    talks: list[Conversation] = []
    while len(talks) < 6:
        talks += rollout.step()
    for talk in talks:
        tokens, sampled = talk.tokens.tolist(), talk.sampled.tolist()
        given = [token for token, drawn in zip(tokens, sampled, strict=True) if not drawn]
        assert given == [5, 7, 9, 11, 13, 15, 17][: len(given)]
        if len(tokens) < target.context:
            assert given == [5, 7, 9, 11, 13, 15, 17]
            assert tokens[-1] in ends, "the end of a reply is among what is learnt"


@torch.inference_mode()
def test_states_and_totals_are_those_of_one_pass() -> None:
    target, whole = (
        TransformersBackend(tiny_model().model, slots=2, context=24, overhang=0, taps=(1, 2)) for _ in range(2)
    )
    rollout = Rollout(target, None, frozenset({3, 4}), [Script((5, 7, 9), ((11, 13),))], torch.float32, seed=2)
    talks: list[Conversation] = []
    while len(talks) < 3:
        talks += rollout.step()
    for talk in talks:
        logits, read = whole.forward_with_states(talk.tokens[None].long(), [0], [0])
        assert read is not None
        judged = talk.sampled[1:]  # of the last token, behind which nothing is drawn, there need be none
        torch.testing.assert_close(talk.features[:-1], read[0, :-1], rtol=1e-4, atol=1e-4)
        totals = logits[0].logsumexp(-1)[:-1]
        torch.testing.assert_close(talk.log_total[:-1][judged], totals[judged], rtol=1e-4, atol=1e-4)
