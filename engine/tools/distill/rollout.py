"""Rollout: conversations written by the target, many at once, with its hidden states.

The target gets the chat template up to the user turn and writes that turn too (as in Magpie: Xu et al. 2024), then its
reply, then possibly further turns. Finished rows are replaced at once, so the batch stays full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specchat.engine.decoding.backend import Backend
from specchat.engine.tools.distill.corpus import Conversation
from specchat.engine.tools.distill.turns import Turns

TEMPERATURES = (0.0, 0.0, 0.7, 1.0)
"""Temperatures of replies, drawn with equal probability, to cover greedy and sampled chats."""
QUESTIONS = 0.8
"""Temperature of user turns; at 1 small models write nonsense."""


@dataclass(frozen=True, slots=True)
class Script:
    """What a conversation is asked."""

    prompt: tuple[int, ...]
    """Ready for a reply."""
    follow_ups: tuple[tuple[int, ...], ...] = ()
    """What comes between a reply and the next: the end of the reply, a user turn, the beginning of a reply."""


@dataclass(slots=True)
class _Writing:
    """One conversation while it is being written."""

    temperature: float
    follow_ups: list[tuple[int, ...]]
    """Still to be given, the next one last."""
    replying: bool
    """Whether a reply is being sampled; otherwise a user turn."""
    tokens: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)


class Rollout:
    """Endless source of conversations, each at most as long as the target's context.

    Args:
        target: with taps, and one slot per conversation written at once.
        turns: what the chat template puts between the turns, where the target writes the user turns; else None.
        ends: token ids that end a turn.
        scripts: what to ask; nothing where the target writes the user turns.
        dtype: that hidden states are kept in.
        seed: of the temperatures and the draws.
    """

    def __init__(
        self,
        target: Backend,
        turns: Turns | None,
        ends: frozenset[int],
        scripts: Sequence[Script],
        dtype: torch.dtype,
        seed: int,
    ) -> None:
        self._target = target
        self._turns = turns
        self._ends = ends
        self._scripts = scripts
        self._waiting: list[int] = []
        self._random = torch.Generator().manual_seed(seed)
        slots, self._length = target.cache.slots, target.context
        embedded = target.embedding_rows(torch.zeros(1, dtype=torch.long, device=target.device))
        self._features = torch.zeros(slots, self._length, embedded.numel() * len(target.taps), dtype=dtype)
        self._log_total = torch.zeros(slots, self._length)
        self._rows = [self._begin(slot) for slot in range(slots)]

    def step(self) -> list[Conversation]:
        """Append one token to every conversation; returns the completed ones and starts others in their place."""
        slots = list(range(len(self._rows)))
        starts = [len(row.tokens) - 1 for row in self._rows]
        tokens = torch.tensor([row.tokens[-1] for row in self._rows], device=self._target.device)[:, None]
        logits, features = self._target.forward_tapped(tokens, slots, starts)
        assert features is not None
        scores = logits[:, 0].float()
        at = torch.tensor(starts)
        self._features[slots, at] = features[:, 0].to("cpu", self._features.dtype)
        best = scores.amax(-1, keepdim=True)
        self._log_total[slots, at] = (best + (scores - best).exp_().sum(-1, keepdim=True).log_())[:, 0].cpu()
        complete = []
        for slot, chosen in enumerate(self._choose(scores).tolist()):
            if not self._goes_on(slot, chosen):
                complete.append(self._conversation(slot, len(self._rows[slot].tokens)))
                self._rows[slot] = self._begin(slot)
        return complete

    def unfinished(self) -> list[Conversation]:
        """The conversations still being written, as far as the target has read what it wrote of them."""
        begun = [slot for slot, row in enumerate(self._rows) if any(row.sampled[:-1])]
        return [self._conversation(slot, len(self._rows[slot].tokens) - 1) for slot in begun]

    def _begin(self, slot: int) -> _Writing:
        temperature = TEMPERATURES[self._draw(len(TEMPERATURES))]
        script = Script(self._turns.opening) if self._turns is not None else self._next_script()
        row = _Writing(temperature, list(script.follow_ups[::-1]), replying=self._turns is None)
        self._give(slot, row, script.prompt)
        return row

    def _next_script(self) -> Script:
        """Next script: all once in random order before any repeats, since greedy replies would repeat too."""
        if not self._waiting:
            self._waiting = torch.randperm(len(self._scripts), generator=self._random).tolist()
        return self._scripts[self._waiting.pop()]

    def _goes_on(self, slot: int, chosen: int) -> bool:
        """Append the chosen token, and what is given where it ends a turn; whether the conversation continues."""
        row = self._rows[slot]
        if len(row.tokens) == self._length:
            return False
        row.tokens.append(chosen)
        row.sampled.append(True)
        if chosen not in self._ends:
            return True
        given = self._following(row)
        if given[:1] == (chosen,):
            given = given[1:]
        if not given or len(row.tokens) + len(given) > self._length:
            # Nothing is read behind the last token.
            self._features[slot, len(row.tokens) - 1] = self._log_total[slot, len(row.tokens) - 1] = 0
            return False
        self._give(slot, row, given)
        return True

    def _following(self, row: _Writing) -> tuple[int, ...]:
        """What is given behind the turn that has ended; nothing where the conversation has."""
        if self._turns is None:
            return row.follow_ups.pop() if row.follow_ups else ()
        row.replying = not row.replying
        return self._turns.answer if row.replying else self._turns.question

    def _give(self, slot: int, row: _Writing, given: Sequence[int]) -> None:
        """Append given tokens, and let the target read all but the last."""
        unread = max(len(row.tokens) - 1, 0)
        row.tokens += given
        row.sampled += [False] * len(given)
        if tokens := row.tokens[unread:-1]:
            fed = torch.tensor([tokens], device=self._target.device)
            features = self._target.prefill(fed, [slot], [unread])
            assert features is not None
            self._features[slot, unread : unread + len(tokens)] = features[0].to("cpu", self._features.dtype)

    def _choose(self, scores: Tensor) -> Tensor:
        """Sample one token per row, [B], from logits [B, V], at each row's temperature."""
        warmth = torch.tensor([row.temperature if row.replying else QUESTIONS for row in self._rows])
        chosen = scores.argmax(-1)
        warm = warmth.nonzero()[:, 0]
        if len(warm):
            shares = (scores[warm.to(scores.device)] / warmth[warm, None].to(scores.device)).softmax(-1).cumsum(-1)
            u = torch.rand(len(warm), 1, generator=self._random).to(scores.device) * shares[:, -1:]
            chosen[warm.to(scores.device)] = torch.searchsorted(shares, u)[:, 0].clamp(max=scores.shape[-1] - 1)
        return chosen

    def _conversation(self, slot: int, length: int) -> Conversation:
        row = self._rows[slot]
        return Conversation(
            torch.tensor(row.tokens[:length], dtype=torch.int32),
            torch.tensor(row.sampled[:length]),
            self._features[slot, :length].clone(),
            self._log_total[slot, :length].clone(),
        )

    def _draw(self, n: int) -> int:
        return int(torch.randint(n, (), generator=self._random))
