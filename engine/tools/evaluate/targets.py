"""Comparison of two targets, or of one in two formats, on texts: where their most likely tokens differ."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf, isinf
from statistics import median
from typing import Any

import torch
from torch import Tensor

from specchat.engine.decoding.backend import Backend
from specchat.engine.errors import EngineError
from specchat.engine.models.encoder_decoder import require_decoder_only
from specchat.engine.models.tokenizer import check_token_ids
from specchat.engine.progress import ignore_progress
from specchat.engine.tools.evaluate.figures import Interval, interval
from specchat.engine.tools.evaluate.text_runner import passes
from specchat.engine.tools.evaluate.texts import EvaluateOptions, Text, select
from specchat.engine.tools.report import Table, csv_report, json_report, one_line, paragraphs
from specchat.engine.tools.runner import Say, config_of
from specchat.engine.worker.assembly import assemble

VERSION = 1
"""Version of the JSON object."""
_EXAMPLES = 10
_BEFORE = 8
"""Tokens shown before a difference."""
_HEADER = (
    "",
    "texts",
    "tokens",
    "same top-1, % (95 %)",
    "KL, nats (95 %)",
    "tokens before the first",
    "never differ",
    "top-2 gap, largest",
)
_CSV = ("category", "texts", "tokens", "differing", "same", "kl", "whole", "first", "gap", "largest_gap")


@dataclass(frozen=True, slots=True)
class Divergence:
    """Choices of two targets at each position of a reply of L tokens, after the text's own tokens."""

    text: Text
    ours: tuple[int, ...]
    """[L]: most likely token of the first target."""
    theirs: tuple[int, ...]
    """[L]: most likely token of the other target."""
    gaps: tuple[float, ...]
    """[L]: difference of the first target's two largest logits."""
    kl: tuple[float, ...]
    """[L]: Kullback-Leibler divergence Σ p log(p / q) of the other distribution q from the first p, in nats."""

    @property
    def places(self) -> list[int]:
        """Positions where their most likely tokens differ."""
        return [place for place, (one, other) in enumerate(zip(self.ours, self.theirs, strict=True)) if one != other]

    def json(self) -> dict[str, Any]:
        """Fields of the JSON report."""
        return {
            "name": self.text.name,
            "category": self.text.category,
            "prompt_tokens": len(self.text.prompt),
            "tokens": self.text.reply,
            "kl": sum(self.kl) / len(self.kl),
            "first": self.places[0] if self.places else None,
            "differences": [
                {
                    "place": place,
                    "target": self.ours[place],
                    "against": self.theirs[place],
                    "gap": self.gaps[place],
                    "kl": self.kl[place],
                }
                for place in self.places
            ],
        }


@torch.inference_mode()
def measure(ours: Backend, theirs: Backend, text: Text, chunk: int) -> Divergence:
    """Let both read a text, in chunks of `chunk` tokens.

    Args:
        ours: the first target.
        theirs: the other, on the same device, with the same token ids.
        text: with a reply of at least one token.
        chunk: tokens per pass.
    """
    found: list[Tensor] = []
    for (one, _), (other, _) in zip(passes(ours, text, chunk), passes(theirs, text, chunk), strict=True):
        if one is not None and other is not None:
            found.append(_compare(one, other))
    columns: Sequence[Sequence[float]] = torch.cat(found).T.tolist()
    best, other_best, gaps, kl = columns
    return Divergence(text, tuple(map(int, best)), tuple(map(int, other_best)), tuple(gaps), tuple(kl))


def _compare(ours: Tensor, theirs: Tensor) -> Tensor:
    """Most likely tokens of both, top-2 gap and divergence [T, 4], float64, on the host, of logits [T, V] and [T, V'].

    Embeddings of one family are padded to different sizes: distributions are over the common tokens.
    """
    vocabulary = min(ours.shape[1], theirs.shape[1])
    ours, theirs = ours[:, :vocabulary].float(), theirs[:, :vocabulary].float()
    top2 = ours.topk(2)
    p, q = ours.log_softmax(-1), theirs.log_softmax(-1)
    # Where p is 0 both logarithms may be infinite; rounding may leave a little below 0.
    kl = (p.exp() * (p - q)).nan_to_num_(nan=0.0).sum(-1).clamp_(min=0.0)
    figures = (top2.indices[:, 0], theirs.argmax(-1), top2.values[:, 0] - top2.values[:, 1], kl)
    return torch.stack([each.double() for each in figures], dim=1).cpu()


@dataclass(frozen=True, slots=True)
class DivergenceFigures:
    """Two targets over some texts."""

    category: str
    """Empty for all texts."""
    texts: int
    tokens: int
    differing: int
    """Positions where their most likely tokens differ."""
    same: float
    """Fraction of positions where their most likely tokens are the same."""
    same_interval: Interval
    kl: float
    """Mean divergence of the other from the first, nats per token."""
    kl_interval: Interval
    whole: int
    """Texts without a difference."""
    first: float | None
    """Median over the texts of the tokens before the first difference; None if most texts have no difference."""
    first_low: float | None
    first_high: float | None
    """Interval of `first`; None as for `first`."""
    gap: float | None
    """Median top-2 gap of the first target where they differ; None without a difference."""
    largest_gap: float | None

    @classmethod
    def of(cls, category: str, found: Sequence[Divergence]) -> DivergenceFigures:
        """Sum up some texts."""
        gaps = [each.gaps[place] for each in found for place in each.places]
        firsts = [float(each.places[0]) if each.places else inf for each in found]
        low, high = interval(firsts, _middle)
        return cls(
            category=category,
            texts=len(found),
            tokens=sum(len(each.ours) for each in found),
            differing=len(gaps),
            same=_same(found),
            same_interval=interval(found, _same),
            kl=_kl(found),
            kl_interval=interval(found, _kl),
            whole=sum(map(isinf, firsts)),
            first=_finite(_middle(firsts)),
            first_low=_finite(low),
            first_high=_finite(high),
            gap=median(gaps) if gaps else None,
            largest_gap=max(gaps) if gaps else None,
        )

    def intervals(self) -> list[float | None]:
        """Bounds of the intervals of `same`, `kl` and `first`."""
        return [*self.same_interval, *self.kl_interval, self.first_low, self.first_high]

    def row(self) -> tuple[str, ...]:
        """Row of the table."""
        return (
            one_line(self.category) or "all texts",
            str(self.texts),
            f"{self.tokens:,}",
            f"{100 * self.same:.2f} ({100 * self.same_interval.low:.2f}–{100 * self.same_interval.high:.2f})",
            f"{self.kl:.5f} ({self.kl_interval.low:.5f}–{self.kl_interval.high:.5f})",
            f"{_number(self.first)} ({_number(self.first_low)}–{_number(self.first_high)})",
            str(self.whole),
            "–" if self.gap is None else f"{self.gap:.3f}, {self.largest_gap:.3f}",
        )


def _same(found: Sequence[Divergence]) -> float:
    tokens = sum(len(each.ours) for each in found)
    return 1 - sum(len(each.places) for each in found) / tokens


def _kl(found: Sequence[Divergence]) -> float:
    return sum(sum(each.kl) for each in found) / sum(len(each.kl) for each in found)


def _middle(values: Sequence[float]) -> float:
    """The median, or the lower of the two middle values: one of them may be infinite."""
    return sorted(values)[(len(values) - 1) // 2]


def _finite(value: float) -> float | None:
    return None if isinf(value) else value


def _number(value: float | None) -> str:
    """A number of tokens; ∞ without a difference."""
    return "∞" if value is None else f"{value:.0f}"


@dataclass(frozen=True)
class TargetComparison:
    """Two targets along texts."""

    target: str
    against: str
    found: tuple[Divergence, ...]
    """One for each text."""
    seconds: float
    """Time both took to read all texts."""
    problems: tuple[str, ...]
    """A sentence for each entry that could not be used, and notices of the models."""
    name: Callable[[int], str]
    """The text of a token."""

    def figures(self) -> list[DivergenceFigures]:
        """Figures over all texts, then over each category if there are several."""
        categories = list(dict.fromkeys(each.text.category for each in self.found))
        whole = [DivergenceFigures.of("", self.found)]
        if len(categories) == 1:
            return whole
        parts = [[each for each in self.found if each.text.category == category] for category in categories]
        return [*whole, *map(DivergenceFigures.of, categories, parts)]

    def text(self) -> str:
        """A table, and the first difference of each text."""
        figures = self.figures()
        head = [
            f"{self.target} against {self.against} on {len(self.found)} texts, {figures[0].tokens:,} tokens of replies",
            f"{self._own(False)} of the tokens are the first one's own greedy choice, {self._own(True)} the other's",
            *map(one_line, self.problems),
        ]
        table = Table(_HEADER, [each.row() for each in figures]).text()
        return paragraphs("\n".join(head), table, "\n".join(self._first_differences()), f"reading {self.seconds:.1f} s")

    def json(self) -> str:
        """One object, with every position where they differ."""
        return json_report(
            "evaluate_against",
            VERSION,
            {
                **{name: getattr(self, name) for name in ("target", "against", "seconds", "problems")},
                "figures": [asdict(each) for each in self.figures()],
                "texts": [each.json() for each in self.found],
            },
        )

    def csv(self) -> str:
        """A line for all texts, then one for each category."""
        header = [*_CSV, "same_low", "same_high", "kl_low", "kl_high", "first_low", "first_high"]
        return csv_report(
            header, ([getattr(each, name) for name in _CSV] + each.intervals() for each in self.figures())
        )

    def _own(self, other: bool) -> str:
        """Fraction of the texts' tokens that are one target's greedy choice."""
        pairs = [(each.theirs if other else each.ours, each.text.reply) for each in self.found]
        agreed = sum(sum(map(int.__eq__, choices, reply)) for choices, reply in pairs)
        return f"{100 * agreed / sum(len(reply) for _, reply in pairs):.1f} %"

    def _first_differences(self) -> Iterator[str]:
        """First difference of each text, sorted by the first target's top-2 gap, largest first."""
        differing = sorted(((each, each.places[0]) for each in self.found if each.places), key=_gap, reverse=True)
        if not differing:
            yield "they never differ"
            return
        yield "the first difference of each text, the largest top-2 gap first"
        for each, place in differing[:_EXAMPLES]:
            before = "".join(self.name(token) for token in each.text.reply[max(place - _BEFORE, 0) : place])
            ours, theirs = (one_line(self.name(choices[place])) for choices in (each.ours, each.theirs))
            figures = f"token {place + 1}, gap {each.gaps[place]:.3f}, KL {each.kl[place]:.4f}"
            yield f"    {one_line(each.text.name)}, {figures}"
            yield f"        {one_line(before)}▸{ours} | {theirs}"
        if len(differing) > _EXAMPLES:
            yield f"    and {len(differing) - _EXAMPLES} more, in --json"


def _gap(found: tuple[Divergence, int]) -> float:
    divergence, place = found
    return divergence.gaps[place]


@dataclass(frozen=True, slots=True)
class Against:
    """The other target."""

    target: str
    dtype: str = "auto"
    quantize: str = "auto"


def compare_targets(options: EvaluateOptions, other: Against, say: Say) -> TargetComparison:
    """Let two targets read the same texts.

    Args:
        options: options of the command, with the first target; options of drafters are ignored.
        other: the other target.
        say: called with one-line progress messages.

    Raises:
        EngineError: both are the same, a model is unavailable, the vocabularies differ, or no text can be used.
    """
    if (options.target, options.dtype, options.quantize) == (other.target, other.dtype, other.quantize):
        raise EngineError("both targets are the same: name another model, or another dtype or quantisation of this one")
    config = config_of(options, draft=None, heads=(), slots=1, context=options.context)
    other_config = replace(config, target=other.target, dtype=other.dtype, quantize=other.quantize)
    ours, theirs = (assemble(each, ignore_progress) for each in (config, other_config))
    for each in (ours, theirs):
        require_decoder_only(each.model, "specchat evaluate reads texts with")
    check_token_ids(ours.model.tokenizer, theirs.model.tokenizer, "other target")
    texts, problems = select(options, ours.model.tokenizer, min(ours.target.context, theirs.target.context))
    found = []
    started = time.perf_counter()
    for number, text in enumerate(texts, 1):
        say(f"text {number} of {len(texts)}: {text.name}")
        found.append(measure(ours.target, theirs.target, text, config.prefill_chunk))
    return TargetComparison(
        target=f"{ours.model.name} ({ours.model.format})",
        against=f"{theirs.model.name} ({theirs.model.format})",
        found=tuple(found),
        seconds=time.perf_counter() - started,
        problems=(*(f"left out: {problem}" for problem in problems), *ours.notices, *theirs.notices),
        name=lambda token: str(ours.model.tokenizer.decode([token])),
    )
