"""The target writing conversations, thousands at once.

All rows are at the same column, and a finished conversation is followed by another one in its row. What each row does
next is decided on the device, so that a step is one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from scripts.train_head.choice import PENALISED, SETTINGS, breakers, pick, repeats
from scripts.train_head.graphs import captured, compiled
from scripts.train_head.parts import ANSWER, OPENING, QUESTION, Parts
from scripts.train_head.reader import Reader
from scripts.train_head.text import Text
from specchat.engine.models.load import LoadedModel

_N_GRAM = 4
"""Tokens that complete an n-gram seen before do not count: the suffix drafter knows them."""
_OWN = 0.5
"""Fraction of conversations whose first question the target writes itself."""
_BY_COLUMN_OR_TOKEN = "present", "runs", "unbroken"
"""Parts of the state with more than one number per row."""


class Writer:
    """Writes waves of text.

    Args:
        model: the target, with a Llama network of transformers.
        taps: depths whose hidden states are kept.
        parts: given text.
        rows: R, conversations at once.
        length: L, columns of a wave.
    """

    def __init__(self, model: LoadedModel, taps: Sequence[int], parts: Parts, rows: int, length: int) -> None:
        network: Any = model.model
        device, vocabulary = network.device, len(network.get_output_embeddings().weight)
        self._device, self._parts = device, parts
        self._reader = Reader(network, taps, rows, length)
        self._text = Text.empty(rows, length, len(taps) * network.config.hidden_size, network.dtype, device)
        self._columns = torch.arange(length, device=device)
        self._ends = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        self._ends[list(model.eos_ids)] = True
        self._breakers = breakers(model.tokenizer, vocabulary, device)
        self._settings = torch.tensor(SETTINGS, device=device).cumsum(0)
        self._column = torch.zeros(1, dtype=torch.long, device=device)
        self._state = _state(rows, length, vocabulary, device)
        self._pick = compiled(pick, device)
        self._replay: Callable[[], None] | None = None

    @torch.no_grad()
    def wave(self) -> Text:
        """Write text over all columns; it is overwritten by the next call."""
        self._begin()
        if self._replay is None:
            self._replay = captured(self._step, self._kept())
        for _ in range(len(self._columns)):
            self._replay()
        return self._text

    def _kept(self) -> list[Tensor]:
        return [self._column, *self._state.values()]

    def _begin(self) -> None:
        for tensor in self._kept():
            tensor.zero_()
        self._text.counted.zero_()
        state = self._state
        for name, value in self._fresh().items():
            state[name].copy_(value)
        state["token"].copy_(self._parts.tokens[state["part"], 0])
        state["offset"].fill_(1)

    def _fresh(self) -> dict[str, Tensor]:
        """State of new conversations in all rows."""
        rows = len(self._state["token"])
        drawn = torch.randint(len(self._parts.firsts), (rows,), device=self._device)
        own = torch.rand(rows, device=self._device) < _OWN
        part = torch.where(own, OPENING, self._parts.firsts[drawn])
        setting = torch.bucketize(torch.rand(rows, device=self._device), self._settings).clamp(max=PENALISED)
        left = torch.randint(0, 2, (rows,), device=self._device)
        return {"part": part, "script": part, "asking": own, "setting": setting, "left": left}

    def _step(self) -> None:
        """Read one token in every row and choose the next."""
        text, state, column = self._text, self._state, self._column
        token, begin = state["token"], state["begin"]
        text.tokens.index_copy_(1, column, token[:, None])
        text.begin.index_copy_(1, column, begin[:, None])
        self._match()
        repeated = state["runs"].amax(1) >= _N_GRAM
        text.counted.index_copy_(1, column, (state["counts"] & ~repeated)[:, None])
        state["present"].scatter_(1, token[:, None], True)
        tapped, scores = self._reader.read(token, begin, column)
        text.tapped.index_copy_(1, column, tapped[:, None])
        text.log_total.index_copy_(1, column, scores.logsumexp(-1, keepdim=True))
        repeated = repeats(scores, text.tokens, state["unbroken"])
        self._advance(
            self._pick(scores, state["present"], repeated, state["setting"][:, None], state["asking"][:, None])
        )
        column.add_(1)

    def _match(self) -> None:
        """Lengths of the repetitions that end at each earlier column and at this one, and those without breakers."""
        state, token, at = self._state, self._state["token"][:, None], self._columns
        same = (self._text.tokens == token) & (at >= state["begin"][:, None]) & (at < self._column)
        for name in ("runs", "unbroken"):
            found = torch.where(same, functional.pad(state[name][:, :-1], (1, 0)) + 1, 0)
            state[name].copy_(found if name == "runs" else found * ~self._breakers[token])

    def _advance(self, chosen: Tensor) -> None:
        """Give the next tokens of given parts, else the chosen ones [R], and continue after the ends of turns."""
        state, parts = self._state, self._parts
        old = {name: value.clone() for name, value in state.items() if name not in _BY_COLUMN_OR_TOKEN}
        part, offset, asking = old["part"], old["offset"], old["asking"]
        giving = offset < parts.lengths[part]
        given = parts.tokens[part, offset.clamp(max=parts.tokens.shape[1] - 1)]
        state["token"].copy_(torch.where(giving, given, chosen))
        state["counts"].copy_(~giving & ~asking)
        state["offset"].add_(giving.long())
        begins = giving & (offset == 0) & parts.opens[part]
        state["begin"].copy_(torch.where(begins, self._column + 1, old["begin"]))
        state["present"].logical_and_(~begins[:, None])
        ended = ~giving & self._ends[chosen]
        following = parts.following[old["script"]]
        follows, asks = following >= 0, old["left"] > 0
        fresh = self._fresh()
        # After a question comes its reply, after a reply a given turn, a question of the target, or a new conversation.
        after = torch.where(follows, following, torch.where(asks, QUESTION, fresh["part"]))
        new = ended & ~asking & ~follows & ~asks
        state["part"].copy_(torch.where(ended, torch.where(asking, ANSWER, after), part))
        state["offset"].masked_fill_(ended, 0)
        state["asking"].copy_(torch.where(ended, ~asking & ~follows & asks, asking))
        state["left"].sub_((ended & ~asking & ~follows & asks).long())
        state["script"].copy_(torch.where(ended & ~asking & follows, following, old["script"]))
        for name, value in fresh.items():
            if name != "part":
                state[name].copy_(torch.where(new, value, state[name]))


def _state(rows: int, length: int, vocabulary: int, device: torch.device) -> dict[str, Tensor]:
    """What a writer knows of its rows, [R] where nothing else is said.

    Returns:
        token: the one to be read next, which begins its conversation at column `begin`.
        part, offset: the given part, and how many of its tokens were given; then the target writes.
        script: the given part that began or continued the conversation last.
        left: questions that the target may still ask.
        setting: of the replies.
        asking, counts: whether the target writes a question; whether it chose the token, in a reply.
        present: [R, V], the tokens of the conversation.
        runs, unbroken: [R, L], as `Writer._match` leaves them.
    """
    zeros = torch.zeros(rows, dtype=torch.long, device=device)
    columns = torch.zeros(rows, length, dtype=torch.long, device=device)
    names = "token", "begin", "part", "offset", "script", "left", "setting"
    return {name: zeros.clone() for name in names} | {
        "asking": zeros.bool(),
        "counts": zeros.bool(),
        "present": torch.zeros(rows, vocabulary, dtype=torch.bool, device=device),
        "runs": columns,
        "unbroken": columns.clone(),
    }
