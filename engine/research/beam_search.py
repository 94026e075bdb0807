"""Speculative beam search (Leviathan et al. 2023, appendix A.4): the beams of beam search in fewer target passes.

The search has the rules of `generate(num_beams=N)` in transformers with its defaults, a length penalty of 1 and
`early_stopping=False`. A step looks at the (1 + number of EOS tokens) x N likeliest texts that are one token longer,
at least 2N. Texts among the first N that end are complete, and the N best complete ones are kept; the first N that do
not end continue. The score of a complete text is its log-probability per token, EOS included. The search is
over when N texts are complete and the best beam, at its present length, scores no higher than the worst of them; or at
the limit of tokens, where the first N texts are complete as they are. Equally likely texts are ordered by their beam,
then by token id.

A draft is a beam search of the draft model over the next γ steps, with u = 2N texts per step. One target pass reads all
of them as a token tree, and the search continues while its beams have been read. The first N of the u texts are the
beams of a search of width N by the draft model, which other texts could displace in a plain search of width u.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import itemgetter

import torch
from torch import Tensor

from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.tree_mask import TreePlace
from specchat.engine.device.device import to_device
from specchat.engine.errors import check

SPREAD = 2
"""Drafted texts per step, in numbers of beams."""
_LENGTHS = (0, 1, 2, 4, 6)
"""Draft lengths that an adaptive γ is chosen from."""
_RECENT, _PROBE = 12, 48
"""Passes of each length that are remembered; passes after which neighbouring lengths are measured again."""

Text = tuple[int, ...]
"""Token ids after the prompt."""
Beam = tuple[float, Text]
"""A text with its log-probability, which comes first."""


@dataclass(frozen=True, slots=True)
class Complete:
    """A text that is complete."""

    tokens: Text
    log_probability: float
    score: float
    """Log-probability per token."""
    ended: bool
    """Whether it ends with an EOS token; else it has reached the limit."""


class BeamSearch:
    """State of one search.

    Args:
        width: N.
        eos: EOS token ids.
        limit: maximum number of tokens of a text.
    """

    def __init__(self, width: int, eos: Collection[int], limit: int) -> None:
        self.width, self.eos, self.limit = width, eos, limit
        self.beams: list[Beam] = [(0.0, ())]
        self.complete: list[Complete] = []
        self.steps = 0

    @property
    def done(self) -> bool:
        """Whether the search is over."""
        full = len(self.complete) == self.width
        return not self.beams or (full and self.beams[0][0] / self.steps <= self.complete[-1].score)

    def advance(self, log_probs: Tensor) -> None:
        """Take one step by the log-probabilities [beams, V] of each beam's next token.

        Raises:
            EngineError: one is NaN.
        """
        self.steps += 1
        continuing: list[Beam] = []
        count = max(2, 1 + len(self.eos)) * self.width
        for rank, (score, text) in enumerate(_likeliest(self.beams, log_probs, count)):
            ended = text[-1] in self.eos
            if not ended and self.steps < self.limit:
                continuing.append((score, text))
            elif rank < self.width:
                self.complete.append(Complete(text, score, score / self.steps, ended))
        self.complete = sorted(self.complete, key=lambda each: -each.score)[: self.width]
        self.beams = continuing[: self.width]


def _likeliest(beams: Sequence[Beam], log_probs: Tensor, count: int) -> list[Beam]:
    """The `count` likeliest texts that are one token longer than a beam, best first."""
    scores = torch.tensor([score for score, _ in beams], dtype=torch.float64, device=log_probs.device)
    sums = (scores[:, None] + log_probs).flatten()
    check(not sums.isnan().any(), "the target computed something that is not a number: try another --dtype")
    least = sums.topk(min(count, len(sums))).values[-1]
    places = (sums >= least).nonzero()[:, 0]  # more than `count` of them if some are as likely as the last
    values, order = sums[places].sort(descending=True, stable=True)
    found = zip(values[:count].tolist(), places[order[:count]].tolist(), strict=True)
    vocabulary = log_probs.shape[1]
    return [(value, (*beams[place // vocabulary][1], place % vocabulary)) for value, place in found]


class TextTree:
    """Texts that a model has read, in one slot of its KV cache.

    Prompt and common beginning of the texts are in consecutive columns. Each token after that has a column to itself,
    after its ancestors, and is read under a tree mask. Dropped texts leave gaps, which are closed.

    Args:
        runner: the model, with a cache of one slot.
        prompt: token ids, which are read at once.
        chunk: prompt tokens per pass.
        vocabulary: V of the target; the draft model may have more.
    """

    def __init__(self, runner: Backend, prompt: Sequence[int], chunk: int, vocabulary: int) -> None:
        self._runner, self._vocabulary = runner, vocabulary
        self._first = len(prompt) - 1
        """Column of the last token of the common beginning, or else of the prompt."""
        self._columns: dict[Text, int] = {(): 0}
        """Columns after `first` of the last tokens of the texts, from the common beginning on."""
        self.log_probs: dict[Text, Tensor] = {}
        """[V], of the next token, for texts that may be continued."""
        for start in range(0, self._first, chunk):
            part = prompt[start : min(start + chunk, self._first)]
            runner.prefill(to_device([part], runner.device), [0], [start])
        self._set([()], runner.forward(to_device([prompt[-1:]], runner.device), [0], [self._first])[0])

    def read(self, texts: Sequence[Text]) -> int:
        """Read the tokens of texts that are not read, in one pass; returns their number."""
        shared = len(next(iter(self._columns)))
        paths = [[text[:end] for end in range(shared + 1, len(text) + 1)] for text in texts]
        unread = list(dict.fromkeys(text for path in paths for text in path if text not in self._columns))
        self._columns |= {text: len(self._columns) + number for number, text in enumerate(unread)}
        places = []
        for text in unread:
            *before, column = (self._columns[text[:end]] for end in range(shared + 1, len(text) + 1))
            places.append(TreePlace(0, self._first, text[-1], column, before))
        if places:
            self._set(unread, self._runner.extend(places))
        return len(places)

    def _set(self, texts: Sequence[Text], logits: Tensor) -> None:
        self.log_probs |= zip(texts, logits[:, : self._vocabulary].float().log_softmax(-1), strict=True)

    def keep(self, texts: Sequence[Text]) -> None:
        """Drop all texts that are no beginnings of `texts`."""
        kept = [text for text in self._columns if any(each[: len(text)] == text for each in texts)]
        columns = [self._columns[text] for text in kept]
        gap = next((i for i, column in enumerate(columns) if column != i), None)
        if gap is not None:
            self._runner.cache.move(0, [self._first + column for column in columns[gap:]], self._first + gap)
        shared = sum(all(each[: len(text)] == text for each in texts) for text in kept) - 1
        self._first += shared
        self._columns = {text: column for column, text in enumerate(kept[shared:])}
        self.log_probs = {text: self.log_probs[text] for text in texts if text in self.log_probs}


def _draft(tree: TextTree, search: BeamSearch, seen: Mapping[Text, Tensor], gamma: int) -> list[Text]:
    """Texts that the beams may become in the next γ steps, up to u for each of them.

    Args:
        tree: of the draft model.
        search: the search.
        seen: log-probabilities [V] that the target has computed for some of the beams already.
        gamma: γ.
    """
    width, beams = search.width, search.beams
    tree.keep([text for _, text in beams])
    drafted: list[Text] = []
    for _ in range(gamma):
        tree.read([text for _, text in beams if text not in seen])
        known = {**tree.log_probs, **seen}
        first, others = (_longer(part, known, search) for part in (beams[:width], beams[width:]))
        others = sorted([*first[width:], *others], key=itemgetter(0), reverse=True)
        beams = [*first[:width], *others][: SPREAD * width]
        drafted += [text for _, text in beams]
    return drafted


def _longer(beams: Sequence[Beam], log_probs: Mapping[Text, Tensor], search: BeamSearch) -> list[Beam]:
    """The likeliest texts that are one token longer and do not end, best first."""
    if not beams:
        return []
    rows = torch.stack([log_probs[text] for _, text in beams])
    top = rows.topk(min(SPREAD * search.width + len(search.eos), rows.shape[1]))
    longer = [
        (score + log_prob, (*text, token))
        for (score, text), values, tokens in zip(beams, top.values.tolist(), top.indices.tolist(), strict=True)
        for log_prob, token in zip(values, tokens, strict=True)
        if token not in search.eos
    ]
    return sorted(longer, key=itemgetter(0), reverse=True)


class DraftLength:
    """Chooses γ of each pass: the length with the fewest measured seconds per step, found by hill climbing.

    Seconds are the least of the recent passes, because other programs may delay a pass; steps are their mean.
    """

    def __init__(self) -> None:
        self._measured = {gamma: deque[tuple[float, int]](maxlen=_RECENT) for gamma in _LENGTHS}
        self._passes = 0

    def learn(self, gamma: int, seconds: float, steps: int) -> None:
        """Record the seconds of a pass with a draft of γ steps, and the steps that the search took after it."""
        self._measured[gamma].append((seconds, steps))
        self._passes += 1

    def choose(self) -> int:
        """γ of the next pass."""
        place = min(range(len(_LENGTHS)), key=self._step_seconds)
        near = _LENGTHS[max(0, place - 1) : place + 2]
        if self._passes % _PROBE == 0:
            for gamma in near:
                self._measured[gamma].clear()
        if not self._measured[0]:
            return 0
        return next((gamma for gamma in reversed(near) if len(self._measured[gamma]) < 2), _LENGTHS[place])

    def _step_seconds(self, place: int) -> float:
        measured = self._measured[_LENGTHS[place]]
        steps = sum(steps for _, steps in measured)
        return min(seconds for seconds, _ in measured) * len(measured) / steps if steps else inf


def run(
    search: BeamSearch, trees: Sequence[TextTree], gamma: int | None, on_pass: Callable[[], None]
) -> tuple[int, int]:
    """Run a search to its end; returns its target passes and the tokens read in them, the prompt's last one included.

    Args:
        search: a new search.
        trees: of the target and, unless γ is 0, of the draft model; they have read the prompt.
        gamma: γ; None for the fastest.
        on_pass: called before each pass.

    Raises:
        EngineError: the target computed NaN.
    """
    target, lengths = trees[0], DraftLength()
    passes = tokens = 1
    _advance(search, target)
    while not search.done:
        on_pass()
        started, before = time.perf_counter(), search.steps
        texts = [text for _, text in search.beams]
        target.keep(texts)
        asked = lengths.choose() if gamma is None else gamma
        ahead = min(asked, search.limit - search.steps - 1)
        drafted = _draft(trees[1], search, target.log_probs, ahead) if ahead else []
        tokens += target.read([*texts, *drafted])
        passes += 1
        _advance(search, target)
        if gamma is None:
            lengths.learn(asked, time.perf_counter() - started, search.steps - before)
    return passes, tokens


def _advance(search: BeamSearch, target: TextTree) -> None:
    """Take as many steps as the target has read the beams of."""
    while not search.done and all(text in target.log_probs for _, text in search.beams):
        search.advance(torch.stack([target.log_probs[text] for _, text in search.beams]))
