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
from specchat.engine.models.packed.load import require_decoder_only
from specchat.engine.models.tokenizer import check_token_ids
from specchat.engine.progress import ignore_progress
from specchat.engine.tools.data_sets import read_entries
from specchat.engine.tools.evaluate.reading import passes
from specchat.engine.tools.evaluate.texts import EvaluateOptions, Text, by_category, interval, select, with_interval
from specchat.engine.tools.report import Columns, Table, csv_report, json_report, one_line, paragraphs
from specchat.engine.tools.runner import Say
from specchat.engine.worker.assembly import assemble, memory_errors

_EXAMPLES = 10
_CSV = ("category", "texts", "tokens", "differing", "same", "kl", "whole", "first", "gap", "largest_gap")


@dataclass(frozen=True, slots=True)
class Divergence:
    """Choices of two targets at each position of a reply of L tokens, after the text's own tokens."""

    text: Text
    ours: Sequence[int]
    """[L]: most likely token of the first target."""
    theirs: Sequence[int]
    """[L]: most likely token of the other target."""
    gaps: Sequence[float]
    """[L]: difference of the first target's two largest logits."""
    kl: Sequence[float]
    """[L]: Kullback-Leibler divergence Σ p log(p / q) of the other distribution q from the first p, in nats."""

    @property
    def places(self) -> list[int]:
        """Positions where their most likely tokens differ."""
        return [place for place, (one, other) in enumerate(zip(self.ours, self.theirs, strict=True)) if one != other]

    def json(self) -> dict[str, Any]:
        """Fields of the JSON report."""
        differences = [
            {"place": i, "target": self.ours[i], "against": self.theirs[i], "gap": self.gaps[i], "kl": self.kl[i]}
            for i in self.places
        ]
        return {
            **self.text.json(),
            "kl": sum(self.kl) / len(self.kl),
            "first": self.places[0] if self.places else None,
            "differences": differences,
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
    found: list[list[Any]] = [[], [], [], []]
    for (one, _), (other, _) in zip(passes(ours, text, chunk), passes(theirs, text, chunk), strict=True):
        if one is not None and other is not None:
            for column, values in zip(found, _compare(one, other), strict=True):
                column += values.tolist()
    return Divergence(text, *found)


def _compare(ours: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Most likely tokens of both, top-2 gaps and divergences [T], of logits [T, V] and [T, V'].

    Embeddings of one family are padded to different sizes: distributions are over the common tokens.
    """
    vocabulary = min(ours.shape[1], theirs.shape[1])
    ours, theirs = ours[:, :vocabulary].float(), theirs[:, :vocabulary].float()
    top2 = ours.topk(2)
    p, q = ours.log_softmax(-1), theirs.log_softmax(-1)
    # Where p is 0 both logarithms may be infinite; rounding may leave a little below 0.
    kl = (p.exp() * (p - q)).nan_to_num_(nan=0.0).sum(-1).clamp_(min=0.0)
    return top2.indices[:, 0], theirs.argmax(-1), top2.values[:, 0] - top2.values[:, 1], kl


def figures_of(category: str, found: Sequence[Divergence]) -> dict[str, Any]:
    """Figures of two targets over some texts; the category is empty for all of them."""
    gaps = [each.gaps[place] for each in found for place in each.places]
    firsts = [float(each.places[0]) if each.places else inf for each in found]
    first, low, high = (None if isinf(each) else each for each in (_middle(firsts), *interval(firsts, _middle)))
    return {
        "category": category,
        "texts": len(found),
        "tokens": sum(len(each.ours) for each in found),
        "differing": len(gaps),  # positions where the most likely tokens differ
        "same": _same(found),
        "same_interval": interval(found, _same),
        "kl": _kl(found),
        "kl_interval": interval(found, _kl),
        "whole": firsts.count(inf),  # texts without a difference
        # Median over the texts of the tokens before the first difference; None if most texts have no difference.
        "first": first,
        "first_low": low,
        "first_high": high,
        # Top-2 gaps of the first target where they differ.
        "gap": median(gaps) if gaps else None,
        "largest_gap": max(gaps, default=None),
    }


def _interval(figures: dict[str, Any], name: str, form: str, factor: float = 1.0) -> str:
    """A figure with its 95 % interval."""
    values = (factor * each for each in (figures[name], *figures[f"{name}_interval"]))
    return with_interval(figures["texts"], values, form)


def _firsts(figures: dict[str, Any]) -> str:
    """Median of the tokens before the first difference, with its interval."""
    return with_interval(figures["texts"], (figures[name] for name in ("first", "first_low", "first_high")), "{:.0f}")


_COLUMNS: Columns = {
    "": lambda each: one_line(each["category"]) or "all texts",
    "texts": lambda each: str(each["texts"]),
    "tokens": lambda each: f"{each['tokens']:,}",
    "same top-1, % (95 %)": lambda each: _interval(each, "same", "{:.2f}", 100),
    "KL, nats (95 %)": lambda each: _interval(each, "kl", "{:.5f}"),
    "tokens before the first": _firsts,
    "never differ": lambda each: str(each["whole"]),
    "top-2 gap, largest": lambda each: "–" if each["gap"] is None else f"{each['gap']:.3f}, {each['largest_gap']:.3f}",
}


def _same(found: Sequence[Divergence]) -> float:
    return 1 - sum(len(each.places) for each in found) / sum(len(each.ours) for each in found)


def _kl(found: Sequence[Divergence]) -> float:
    return sum(sum(each.kl) for each in found) / sum(len(each.kl) for each in found)


def _middle(values: Sequence[float]) -> float:
    """The median, or the lower of the two middle values: one of them may be infinite."""
    return sorted(values)[(len(values) - 1) // 2]


@dataclass(frozen=True)
class TargetComparison:
    """Two targets along texts."""

    target: str
    against: str
    found: Sequence[Divergence]
    """One for each text."""
    seconds: float
    """Time both took to read all texts."""
    problems: Sequence[str]
    """A sentence for each entry that could not be used, and notices of the models."""
    name: Callable[[int], str]
    """The text of a token."""

    def figures(self) -> list[dict[str, Any]]:
        """Figures over all texts, then over each category if there are several."""
        return [figures_of(*part) for part in by_category(self.found, lambda each: each.text.category)]

    def text(self) -> str:
        """A table, and the first difference of each text."""
        figures = self.figures()
        tokens = figures[0]["tokens"]
        ours, theirs = (
            sum(sum(map(int.__eq__, getattr(each, side), each.text.reply)) for each in self.found) / tokens
            for side in ("ours", "theirs")
        )
        head = [
            f"{self.target} against {self.against} on {len(self.found)} texts, {tokens:,} tokens of replies",
            f"{100 * ours:.1f} % of the tokens are the first one's own greedy choice, {100 * theirs:.1f} % the other's",
            *map(one_line, self.problems),
        ]
        table = Table.of(figures, _COLUMNS).text()
        return paragraphs("\n".join(head), table, "\n".join(self._first_differences()), f"reading {self.seconds:.1f} s")

    def json(self) -> str:
        """One object, with every position where they differ."""
        return json_report(
            "evaluate_against",
            {
                **{name: getattr(self, name) for name in ("target", "against", "seconds", "problems")},
                "figures": self.figures(),
                "texts": [each.json() for each in self.found],
            },
        )

    def csv(self) -> str:
        """A line for all texts, then one for each category."""
        bounds = ("same_low", "same_high", "kl_low", "kl_high", "first_low", "first_high")
        rows = (
            [*map(each.get, _CSV), *each["same_interval"], *each["kl_interval"], each["first_low"], each["first_high"]]
            for each in self.figures()
        )
        return csv_report((*_CSV, *bounds), rows)

    def _first_differences(self) -> Iterator[str]:
        """First difference of each text, sorted by the first target's top-2 gap, largest first."""
        differing = [(each, each.places[0]) for each in self.found if each.places]
        if not differing:
            yield "they never differ"
            return
        differing.sort(key=lambda found: found[0].gaps[found[1]], reverse=True)
        yield "the first difference of each text, the largest top-2 gap first"
        for each, place in differing[:_EXAMPLES]:
            ours, theirs = (one_line(self.name(choices[place])) for choices in (each.ours, each.theirs))
            figures = f"token {place + 1}, gap {each.gaps[place]:.3f}, KL {each.kl[place]:.4f}"
            yield f"    {one_line(each.text.name)}, {figures}"
            yield f"        {each.text.before(place, self.name)}▸{ours} | {theirs}"
        if len(differing) > _EXAMPLES:
            yield f"    and {len(differing) - _EXAMPLES} more, in --json"


@dataclass(frozen=True, slots=True)
class Against:
    """The other target."""

    target: str
    dtype: str = "auto"
    quantize: str = "auto"


@memory_errors()
def compare_targets(options: EvaluateOptions, other: Against, say: Say) -> TargetComparison:
    """Let two targets read the same texts.

    Args:
        options: options of the command, with the first target; options of drafters are ignored.
        other: the other target.
        say: called with one-line progress messages.

    Raises:
        EngineError: both are the same, a model is unavailable, the vocabularies differ, or no text can be used.
    """
    if Against(options.target, options.dtype, options.quantize) == other:
        raise EngineError("both targets are the same: name another model, or another dtype or quantisation of this one")
    entries = read_entries(options.files)
    config = options.config(draft=None, heads=(), slots=1)
    ours, theirs = (assemble(each, ignore_progress) for each in (config, replace(config, **asdict(other))))
    for each in (ours, theirs):
        require_decoder_only(each.model, "specchat evaluate reads texts with")
    check_token_ids(ours.model.tokenizer, theirs.model.tokenizer, "other target")
    texts, problems = select(options, entries, ours.model.tokenizer, min(ours.target.context, theirs.target.context))
    found = []
    started = time.perf_counter()
    for place, text in enumerate(texts, 1):
        say(f"text {place} of {len(texts)}: {text.name}")
        found.append(measure(ours.target, theirs.target, text, config.prefill_chunk))
    return TargetComparison(
        target=f"{ours.model.name} ({ours.model.format})",
        against=f"{theirs.model.name} ({theirs.model.format})",
        found=found,
        seconds=time.perf_counter() - started,
        problems=[*(f"left out: {problem}" for problem in problems), *ours.notices, *theirs.notices],
        name=lambda token: str(ours.model.tokenizer.decode([token])),
    )
