"""Rollout: conversations written by the target, many at once, with its hidden states.

The target gets the chat template up to the user turn and writes that turn too (as in Magpie: Xu et al. 2024), then its
reply, then possibly further turns. Finished rows are replaced at once, so the batch stays full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specchat.engine.runner.model_runner import ModelRunner
from specchat.engine.tools.distill.corpus import Conversation
from specchat.engine.tools.distill.turns import Turns

TEMPERATURES = (0.0, 0.0, 0.7, 1.0)
"""Temperatures of replies, drawn with equal probability, to cover greedy and sampled chats."""
QUESTIONS = 0.8
"""Temperature of user turns; at 1 small models write nonsense."""


@dataclass(slots=True)
class _Writing:
    """One conversation while it is being written."""

    temperature: float
    forced: list[int]
    """Given tokens still to be appended, the next one last."""
    replying: bool = False
    """Whether a reply is being sampled; otherwise a user turn."""
    tokens: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)


class Rollout:
    """Endless source of conversations, each as long as the target's context.

    Args:
        target: with taps, and one slot per conversation written at once.
        turns: what the chat template puts between the turns.
        ends: token ids that end a turn.
        prompts: prompts as token ids, ready for a reply; without any, the target writes the user turns.
        seed: of the temperatures and the draws.
    """

    def __init__(
        self,
        target: ModelRunner,
        turns: Turns | None,
        ends: frozenset[int],
        prompts: Sequence[Sequence[int]],
        seed: int,
    ) -> None:
        self._target = target
        self._turns = turns
        self._ends = ends
        self._prompts = prompts
        self._waiting: list[int] = []
        self._random = torch.Generator().manual_seed(seed)
        slots, size = target.cache.slots, target.config.hidden_size * len(target.taps)
        self._length = target.context
        self._features = torch.zeros(slots, self._length, size, dtype=target.model.dtype)
        self._log_total = torch.zeros(slots, self._length)
        self._rows = [self._begin() for _ in range(slots)]

    def step(self) -> list[Conversation]:
        """Append one token to every conversation; returns the completed ones and starts others in their place."""
        slots = list(range(len(self._rows)))
        starts = [len(row.tokens) - 1 for row in self._rows]
        tokens = torch.tensor([row.tokens[-1] for row in self._rows], device=self._target.device)[:, None]
        logits, features = self._target.forward_tapped(tokens, slots, starts)
        assert features is not None
        scores = logits[:, 0].float()
        at = torch.tensor(starts)
        self._features[slots, at] = features[:, 0].cpu()
        self._log_total[slots, at] = scores.logsumexp(-1).cpu()
        complete = []
        for slot, chosen in enumerate(self._choose(scores).tolist()):
            row = self._rows[slot]
            if len(row.tokens) < self._length and self._goes_on(row, chosen):
                self._append(row, chosen)
            else:
                complete.append(self._conversation(slot, len(row.tokens)))
                self._rows[slot] = self._begin()
        return complete

    def unfinished(self) -> list[Conversation]:
        """The conversations still being written, as far as they are."""
        return [self._conversation(slot, len(row.tokens) - 1) for slot, row in enumerate(self._rows) if row.tokens[1:]]

    def _begin(self) -> _Writing:
        temperature = TEMPERATURES[self._draw(len(TEMPERATURES))]
        if self._turns is None:
            row = _Writing(temperature, list(self._next_prompt()[::-1]), replying=True)
        else:
            row = _Writing(temperature, list(self._turns.opening[::-1]))
        self._append(row, None)
        return row

    def _next_prompt(self) -> Sequence[int]:
        """Next prompt: all prompts once in random order before any repeats, since greedy replies would repeat too."""
        if not self._waiting:
            self._waiting = torch.randperm(len(self._prompts), generator=self._random).tolist()
        return self._prompts[self._waiting.pop()]

    def _goes_on(self, row: _Writing, chosen: int) -> bool:
        """Whether the conversation continues; at the end of a turn, sets the template's tokens as forced ones."""
        if row.forced or chosen not in self._ends:
            return True
        if self._turns is None:
            return False
        row.forced = list((self._turns.question if row.replying else self._turns.answer)[::-1])
        row.replying = not row.replying
        return True

    @staticmethod
    def _append(row: _Writing, chosen: int | None) -> None:
        """Append the next given token, or else the chosen one."""
        given = bool(row.forced)
        token = row.forced.pop() if given else chosen
        assert token is not None
        row.tokens.append(token)
        row.sampled.append(not given)

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
