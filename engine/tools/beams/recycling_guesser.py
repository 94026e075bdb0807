"""Guesses by token recycling: what the target found behind the last tokens of a text when it last met them.

As `engine.drafters.recycling` (Luo et al. 2024, arXiv 2408.08696, section 3), with the target's
probabilities beside the tokens, as beams are ordered by them, and with contexts of two tokens before those of one:
beams that differ far back end alike. Until the target has met a context, the prompt's own continuation of it counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import log

from torch import Tensor

from specchat.engine.tools.beams.guesser import Likely, likeliest
from specchat.engine.tools.beams.node import Node

CONTEXT = 2
"""Most tokens of a context."""
_KEPT = 8
"""Tokens that are kept behind each context."""
_UNREAD = 8
"""Latest passes that something is learnt from, where none has been drafted for."""
_OF_THE_PROMPT = log(0.9)
"""What a continuation that the prompt has is thought to be worth."""


class RecyclingGuesser:
    """The table of one prompt and its beams.

    Args:
        prompt: its tokens.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self._unread: deque[tuple[Sequence[Node], Tensor]] = deque(maxlen=_UNREAD)
        self._last = prompt[-CONTEXT:-1]
        """What stands before the prompt's last token."""
        self._likely: dict[tuple[int, ...], Likely] = {
            tuple(prompt[end - length : end]): [(prompt[end], _OF_THE_PROMPT)]
            for length in range(1, CONTEXT + 1)
            for end in range(length, len(prompt))
        }

    def following(self, nodes: Sequence[Node], count: int) -> list[Likely]:
        """What is known of the longest context of each text; nothing where none is known."""
        while self._unread:
            self._take_in(*self._unread.popleft())
        known = ((self._likely.get(context, ()) for context in self._contexts(node)) for node in nodes)
        return [next(filter(None, each), ())[:count] for each in known]

    def learn(self, nodes: Sequence[Node], logits: Tensor) -> None:
        """Note what the target has found; it is looked at when something is drafted."""
        self._unread.append((nodes, logits))

    def keep(self, ends: Sequence[Node]) -> None:
        """Nothing: a dropped text has taught as much as any other."""

    def _take_in(self, nodes: Sequence[Node], logits: Tensor) -> None:
        """Replace what is known of their contexts."""
        for node, likely in zip(nodes, likeliest(logits, _KEPT), strict=True):
            for context in self._contexts(node):
                self._likely[context] = likely

    def _contexts(self, node: Node) -> list[tuple[int, ...]]:
        """The last tokens of a text, the longest context first."""
        last: list[int] = []
        before: Node | None = node
        while before is not None and len(last) < CONTEXT:
            last.insert(0, before.token)
            before = before.parent
        whole = (*self._last[len(self._last) + len(last) - CONTEXT :], *last) if len(last) < CONTEXT else tuple(last)
        return [whole[start:] for start in range(len(whole))]
