"""Rollout: conversations written by the target, many at once, with its hidden states.

The target gets the chat template up to the user turn and writes that turn too (as in Magpie: Xu et al. 2024), then its
reply, then possibly further turns. Finished rows are replaced at once, so the batch stays full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specchat.engine.decoding.backend import Backend
from specchat.engine.errors import EngineError
from specchat.engine.tools.distill.corpus import Conversation

TEMPERATURES = (0.0, 0.0, 0.7, 1.0)
"""Temperatures of replies, drawn with equal probability, to cover greedy and sampled chats."""
QUESTIONS = 0.8
"""Temperature of user turns; at 1 small models write nonsense."""


_MARKS = ("<<first>>", "<<second>>", "<<third>>")


@dataclass(frozen=True, slots=True)
class Turns:
    """Token ids that a chat template puts around the turns of a conversation."""

    opening: tuple[int, ...]
    """Up to the first user turn."""
    answer: tuple[int, ...]
    """From the end of a user turn to the beginning of the reply."""
    question: tuple[int, ...]
    """From the end of a reply to the beginning of the next user turn."""

    @classmethod
    def of(cls, tokenizer: Any, name: str) -> Turns:
        """Derive the fixed parts from the tokenizer's chat template.

        Args:
            tokenizer: a fast tokenizer of transformers.
            name: display name of the target, for the error.

        Raises:
            EngineError: there is no chat template, or it changes the text of turns.
        """
        if not tokenizer.chat_template:
            raise EngineError(
                f"{name} has no chat template, so no conversations can be made with it: give prompts with --prompts, "
                "or choose a target made for chat"
            )
        first, second, third = _MARKS
        turns = [("user", first), ("assistant", second), ("user", third)]
        messages = [{"role": role, "content": text} for role, text in turns]
        try:
            text = str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
            opening, rest = text.split(first)
            answer, rest = rest.split(second)
            question, _ = rest.split(third)
        except Exception as error:  # a template is a program of the model: it may raise anything
            raise EngineError(f"the chat template of {name} cannot be used for distilling ({error})") from None
        parts = (tuple(tokenizer.encode(part, add_special_tokens=False)) for part in (opening, answer, question))
        return cls(*parts)


@dataclass(frozen=True, slots=True)
class Script:
    """Given parts of a conversation, as token ids."""

    prompt: tuple[int, ...]
    """Prompt up to the first reply."""
    follow_ups: tuple[tuple[int, ...], ...] = ()
    """Between two replies: the end of the first, a user turn, the beginning of the next."""


@dataclass(slots=True)
class _Writing:
    """A conversation that is being written."""

    temperature: float
    follow_ups: list[tuple[int, ...]]
    """Remaining ones, the next one last."""
    replying: bool
    """Whether a reply is being sampled; otherwise a user turn."""
    tokens: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)


class Rollout:
    """Endless source of conversations, each at most as long as the target's context.

    Args:
        target: with taps, and one slot per conversation written at once.
        turns: parts of the chat template, if the target writes the user turns; else None.
        ends: token ids that end a turn.
        scripts: given parts; empty if the target writes the user turns.
        dtype: dtype of the stored hidden states.
        seed: seed of the temperatures and the draws.
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
        logits, features = self._target.forward_with_states(tokens, slots, starts)
        assert features is not None
        scores = logits[:, 0].float()
        at = torch.tensor(starts)
        self._features[slots, at] = features[:, 0].to("cpu", self._features.dtype)
        best = scores.amax(-1, keepdim=True)
        self._log_total[slots, at] = (best + (scores - best).exp_().sum(-1, keepdim=True).log_())[:, 0].cpu()
        complete = []
        for slot, chosen in enumerate(self._choose(scores).tolist()):
            if not self._continues(slot, chosen):
                complete.append(self._conversation(slot, len(self._rows[slot].tokens)))
                self._rows[slot] = self._begin(slot)
        return complete

    def unfinished(self) -> list[Conversation]:
        """Conversations that are not complete, up to the last token that the target has read."""
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

    def _continues(self, slot: int, chosen: int) -> bool:
        """Append the chosen token, and the given tokens after the end of a turn; whether the conversation continues."""
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
            # The target does not read the last token.
            self._features[slot, len(row.tokens) - 1] = self._log_total[slot, len(row.tokens) - 1] = 0
            return False
        self._give(slot, row, given)
        return True

    def _following(self, row: _Writing) -> tuple[int, ...]:
        """Given tokens after a turn; empty at the end of the conversation."""
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
        per_row = [row.temperature if row.replying else QUESTIONS for row in self._rows]
        temperatures = torch.tensor(per_row, device=scores.device)
        chosen = scores.argmax(-1)
        sampled = temperatures.nonzero()[:, 0]
        if len(sampled):
            shares = (scores[sampled] / temperatures[sampled, None]).softmax(-1).cumsum(-1)
            u = torch.rand(len(sampled), 1, generator=self._random).to(scores.device) * shares[:, -1:]
            chosen[sampled] = torch.searchsorted(shares, u)[:, 0].clamp(max=scores.shape[-1] - 1)
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
