"""Drafters bigram and unigram: counted tables as approximation models of negligible cost.

Leviathan et al. 2023, section 3.6. q is a true distribution: a sampled row's tokens are drawn from the counts,
standardised as p is. `specchat distill --kind bigram` counts the tables of a folder: `tables.safetensors` with the
counts, `tables.json` with the tokenizer that they are for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specchat.engine.decoding.draft import Draft, RowOrder
from specchat.engine.decoding.drafter import Drafter
from specchat.engine.device.graphs import Graphs
from specchat.engine.drafters.build_context import BuildContext
from specchat.engine.drafters.model_steps import ModelSteps, drafted_chains
from specchat.engine.drafters.part_folder import PartFolder
from specchat.engine.errors import EngineError
from specchat.engine.models.packed.load import Model

MOST = 32
"""Continuations of a token that are kept, the most frequent ones."""


@dataclass(frozen=True)
class Counts:
    """Unigram and bigram counts of a text over a vocabulary of V tokens."""

    single: Tensor
    """[V], int64: how often each token occurs in it."""
    starts: Tensor
    """[V + 1], int64: the continuations of token t are entries starts[t] to starts[t + 1]."""
    following: Tensor
    """[N], int32: continuations, of each token the most frequent first."""
    times: Tensor
    """[N], int32: how often each of them occurs there."""

    @property
    def tokens(self) -> int:
        """Tokens of the text."""
        return int(self.single.sum())

    @cached_property
    def most_frequent(self) -> Tensor:
        """Up to `MOST` tokens, the most frequent first, [W], int64: what follows a token that was never seen."""
        order = self.single.argsort(descending=True, stable=True)[:MOST]
        return order[self.single[order] > 0]

    def check(self) -> None:
        """Check that the tables are counts of a text.

        Raises:
            ValueError: they are not.
        """
        size = len(self.following)
        whole = all(each.ndim == 1 and not each.is_floating_point() for each in vars(self).values())
        if not whole or len(self.starts) != len(self.single) + 1 or len(self.times) != size:
            raise ValueError("the lengths of its tables do not fit together")
        if int(self.starts[0]) or int(self.starts[-1]) != size or bool((self.starts.diff() < 0).any()):
            raise ValueError("its list of places is not in order")
        if int(self.starts.diff().max()) > MOST:
            raise ValueError(f"it has more than {MOST} continuations of a token")
        if size and not 0 <= int(self.following.min()) <= int(self.following.max()) < len(self.single):
            raise ValueError("it names tokens that are not in its vocabulary")
        if (size and int(self.times.min()) < 1) or int(self.single.min()) < 0 or not self.tokens:
            raise ValueError("it has counts that are none")


class BigramNetwork:
    """Bigram model: the counted continuations of each token.

    A token that was never seen is followed by the most frequent tokens of all (back-off to the unigram). Tokens that
    are not among the `MOST` likeliest have probability 0, which is exact: acceptance takes any q.

    Args:
        counts: of a text, over V' tokens.
        vocabulary: V, at least V'.
        device: where logits are wanted.
    """

    def __init__(self, counts: Counts, vocabulary: int, device: torch.device) -> None:
        self.device = device
        self._vocabulary = vocabulary
        usual = counts.most_frequent
        lengths = counts.starts.diff()
        tokens = torch.zeros(vocabulary, MOST, dtype=torch.int32)
        logits = torch.full((vocabulary, MOST), -torch.inf)
        tokens[:, : len(usual)] = usual.int()
        logits[:, : len(usual)] = counts.single[usual].float().log()
        seen = lengths.nonzero()[:, 0]
        logits[seen] = -torch.inf
        rows = torch.arange(len(lengths)).repeat_interleave(lengths)
        ranks = torch.arange(len(counts.following)) - counts.starts[:-1].repeat_interleave(lengths)
        tokens[rows, ranks] = counts.following
        logits[rows, ranks] = counts.times.float().log()
        self.likeliest: list[int] = tokens[:, 0].tolist()
        """[V]: what follows each token most often."""
        self._tokens, self._logits = tokens.to(device), logits.to(device)
        self.bytes = tokens.nbytes + logits.nbytes
        """Memory of the tables."""

    def forward(self, inputs: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor:  # noqa: ARG002 no cache
        """Logits [B, 1, V], float32, after the last of tokens [B, T]: logarithms of counts."""
        last = inputs[:, -1]
        whole = torch.full((len(last), self._vocabulary), -torch.inf, device=self.device)
        # Places that are not used have logit -inf at a token that may be used too: the larger of both counts.
        whole.scatter_reduce_(1, self._tokens[last].long(), self._logits[last], "amax")
        return whole[:, None]


class UnigramNetwork:
    """Unigram model: the frequency of each token in the text.

    Args:
        counts: of a text, over V' tokens.
        vocabulary: V, at least V'.
        device: where logits are wanted.
    """

    def __init__(self, counts: Counts, vocabulary: int, device: torch.device) -> None:
        self.device = device
        logits = torch.full((vocabulary,), -torch.inf)
        logits[: len(counts.single)] = counts.single.float().log()
        self.likeliest = [int(counts.most_frequent[0])] * vocabulary
        """[V]: the most frequent token, after each."""
        self._logits = logits.to(device)
        self.bytes = logits.nbytes
        """Memory of the table."""

    def forward(self, inputs: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor:  # noqa: ARG002 no cache
        """Logits [B, 1, V], float32, after the last of tokens [B, T]: logarithms of counts."""
        return self._logits.expand(len(inputs), 1, -1).contiguous()


class TableDrafter(Drafter):
    """Drafts token by token what a table has after the last one.

    Args:
        name: of the drafter.
        network: the table.
        context: of the engine.
    """

    def __init__(self, name: str, network: BigramNetwork | UnigramNetwork, context: BuildContext) -> None:
        model, graphs = context.model, Graphs(network.device, 1, None)
        self.name = name
        self.weight_bytes = network.bytes
        self._likeliest = network.likeliest
        self._steps = ModelSteps(network.forward, graphs, context.target.penalties, model.vocab_size)
        self._ends = model.eos_ids
        """Tokens after which the likeliest draft ends: the reply would be over."""

    def propose(self, orders: Sequence[RowOrder]) -> list[Draft]:
        """Chains: the likeliest tokens where all rows are plain and none draws its draft, else with distributions."""
        rows = [order.row for order in orders]
        plain = not any(row.request.sampling.adjusts_drafts for row in rows)
        if plain and not any(row.draws for row in rows):
            chains = [self._chain(order.row.tokens[-1], order.gamma) for order in orders]
            return [Draft.chain(each, steps=order.gamma) for each, order in zip(chains, orders, strict=True)]
        return drafted_chains(orders, *self._steps.draft(rows, 1, max(order.gamma for order in orders)))

    def _chain(self, token: int, count: int) -> list[int]:
        """Up to `count` tokens, each the likeliest after the one before."""
        chain: list[int] = []
        while len(chain) < count and token not in self._ends:
            token = self._likeliest[token]
            chain.append(token)
        return chain


CARD, TABLES = "tables.json", "tables.safetensors"
_FOLDER = PartFolder("tables", CARD, TABLES, "specchat distill --kind bigram")


@dataclass(frozen=True, slots=True)
class TableCard:
    """The target of tables, and the text that was counted."""

    target: str
    """Display name of the target."""
    tokenizer: str
    """Fingerprint of the target's tokens (`fingerprint`): counts know nothing of its weights."""
    vocabulary: int
    """V."""
    tokens: int
    """Tokens of the text."""


@dataclass(frozen=True, slots=True)
class LoadedTables:
    """Tables that fit their target."""

    counts: Counts
    name: str
    """For display."""
    weight_bytes: int = 0
    """They are counted with the drafters that use them."""
    taps: tuple[int, ...] = ()


def fingerprint(tokenizer: Any) -> str:
    """SHA-256, in hexadecimal, over the ids and texts of a tokenizer's tokens."""
    tokens = sorted((number, text) for text, number in tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()


def save_tables(folder: Path, counts: Counts, card: TableCard) -> None:
    """Write tables.

    Raises:
        EngineError: the disk is full, or not to be written.
    """
    _FOLDER.write(folder, vars(counts), {"format": _FOLDER.version, **asdict(card)})


def load_tables(folder: Path, model: Model) -> LoadedTables:
    """Load tables for a target, whose logits may be padded beyond the tables' vocabulary.

    Raises:
        EngineError: they were counted for other tokens, or the folder is broken.
    """
    card = _FOLDER.read_card(folder, TableCard)
    if card.tokenizer != fingerprint(model.tokenizer):
        raise EngineError(
            f"the tables {folder} were counted for {card.target}, which has other tokens than {model.name}: count them "
            f"for this target with {_FOLDER.command}"
        )
    with _FOLDER.reading(folder) as tensors:
        counts = Counts(**tensors)
        counts.check()
        if len(counts.single) != card.vocabulary or card.vocabulary > model.vocab_size:
            raise ValueError(
                f"it is for {len(counts.single)} tokens, its card for {card.vocabulary}, and {model.name} has "
                f"{model.vocab_size}"
            )
    return LoadedTables(counts, f"bigrams of {card.tokens:,} tokens")


def build(context: BuildContext, name: str) -> TableDrafter:
    """The drafter for an engine."""
    make = BigramNetwork if name == "bigram" else UnigramNetwork
    network = make(context.parts["tables"].counts, context.model.vocab_size, context.target.device)
    return TableDrafter(name, network, context)
