"""Scoring of a text: the log-probability of each of its tokens after the tokens before it."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import torch

from specchat.engine.device.device import to_device
from specchat.engine.errors import check
from specchat.engine.round import TokenScore
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.worker.assembly import Assembly

_CHUNK = 32
"""Tokens per pass: the logits of each, and the recurrent states after each, are in memory at once."""


def score(made: Assembly, slot: int, *, ids: Sequence[int], top: int) -> Generator[None, None, list[TokenScore]]:
    """Read a text with the target, a pass per step: no prefix that the cache knows is reused, as it has no logits.

    Args:
        made: the loaded models.
        slot: a reserved slot of the target's cache.
        ids: the text, at most the target's context.
        top: number of most likely tokens that each score lists.

    Returns:
        The scores of all tokens but the first.
    """
    target, scores = made.target, list[TokenScore]()
    check(made.model.start is None, f"{made.model.name} continues no text, so that none can be scored")
    names = Detokenizer(made.model.tokenizer, ())
    for start in range(0, len(ids) - 1, _CHUNK):
        following = ids[start + 1 : start + 1 + _CHUNK]
        fed = to_device([list(ids[start : start + len(following)])], target.device)
        with torch.inference_mode():
            log_p = target.forward(fed, [slot], [start])[0].float().log_softmax(-1)
            best = log_p.topk(min(top, log_p.shape[-1]))
            own = log_p.gather(-1, to_device([[token] for token in following], target.device))[:, 0].tolist()
        told = f"{made.model.name} computed something that is not a number: try another --dtype"
        check(not bool(log_p.isnan().any()), told)
        for logprob, tokens, values in zip(own, best.indices.tolist(), best.values.tolist(), strict=True):
            named = zip(map(names.name, tokens), values, strict=True)
            scores.append(TokenScore(logprob, tuple(named)))
        yield
    return scores
