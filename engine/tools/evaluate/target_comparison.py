"""What the comparison of two targets found, as text, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specchat.engine.tools.evaluate.divergence import Divergence
from specchat.engine.tools.evaluate.divergence_figures import DivergenceFigures
from specchat.engine.tools.evaluate.lines import one_line

VERSION = 1
_EXAMPLES = 10
_BEFORE = 8
"""Tokens shown before one that differs."""


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
    """What could not be used, or does not run as it could, a sentence each."""
    name: Callable[[int], str]
    """The text of a token."""

    def figures(self) -> list[DivergenceFigures]:
        """Over all texts, then over each category where there are several."""
        categories = list(dict.fromkeys(each.text.category for each in self.found))
        whole = [DivergenceFigures.of("", self.found)]
        if len(categories) == 1:
            return whole
        parts = [[each for each in self.found if each.text.category == category] for category in categories]
        return [*whole, *map(DivergenceFigures.of, categories, parts)]

    def text(self) -> str:
        """A table to read, and where texts first differ."""
        figures = self.figures()
        lines = [
            f"{self.target} against {self.against} on {len(self.found)} texts, {figures[0].tokens:,} tokens of replies",
            f"{self._own(False)} of the tokens are the first one's own greedy choice, {self._own(True)} the other's",
            *map(one_line, self.problems),
            "",
            *_table(figures),
            "",
            *self._first_differences(),
            "",
            f"reading {self.seconds:.1f} s",
        ]
        return "\n".join(lines)

    def json(self) -> str:
        """One object, with every place where they differ."""
        whole: dict[str, Any] = {
            "specchat_evaluate_against": VERSION,
            "target": self.target,
            "against": self.against,
            "seconds": self.seconds,
            "problems": self.problems,
            "figures": [asdict(each) for each in self.figures()],
            "texts": [
                {
                    "name": each.text.name,
                    "category": each.text.category,
                    "prompt_tokens": len(each.text.prompt),
                    "tokens": each.text.reply,
                    "kl": sum(each.kl) / len(each.kl),
                    "first": each.places[0] if each.places else None,
                    "differences": [
                        {
                            "place": place,
                            "target": each.ours[place],
                            "against": each.theirs[place],
                            "gap": each.gaps[place],
                            "kl": each.kl[place],
                        }
                        for place in each.places
                    ],
                }
                for each in self.found
            ],
        }
        return json.dumps(whole, ensure_ascii=False, indent=1)

    def csv(self) -> str:
        """A line for all texts, then one for each category."""
        out = io.StringIO()
        plain = ("category", "texts", "tokens", "differing", "same", "kl", "whole", "first", "gap", "largest_gap")
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*plain, "same_low", "same_high", "kl_low", "kl_high", "first_low", "first_high"])
        for each in self.figures():
            values = [getattr(each, name) for name in plain]
            writer.writerow([*values, *each.same_interval, *each.kl_interval, each.first_low, each.first_high])
        return out.getvalue()

    def _own(self, other: bool) -> str:
        """The share of the texts' tokens that are one target's own greedy choice."""
        pairs = [(each.theirs if other else each.ours, each.text.reply) for each in self.found]
        agreed = sum(sum(map(int.__eq__, said, reply)) for said, reply in pairs)
        return f"{100 * agreed / sum(len(reply) for _, reply in pairs):.1f} %"

    def _first_differences(self) -> Iterator[str]:
        """Where the texts first differ, those first that the first target was surest of."""
        differing = sorted(((each, each.places[0]) for each in self.found if each.places), key=_gap, reverse=True)
        if not differing:
            yield "they never differ"
            return
        yield "the first difference of each text, the largest top-2 gap first"
        for each, place in differing[:_EXAMPLES]:
            before = "".join(self.name(token) for token in each.text.reply[max(place - _BEFORE, 0) : place])
            ours, theirs = (one_line(self.name(said[place])) for said in (each.ours, each.theirs))
            figures = f"token {place + 1}, gap {each.gaps[place]:.3f}, KL {each.kl[place]:.4f}"
            yield f"    {one_line(each.text.name)}, {figures}"
            yield f"        {one_line(before)}▸{ours} | {theirs}"
        if len(differing) > _EXAMPLES:
            yield f"    and {len(differing) - _EXAMPLES} more, in --json"


def _gap(found: tuple[Divergence, int]) -> float:
    divergence, place = found
    return divergence.gaps[place]


def _table(figures: Sequence[DivergenceFigures]) -> Iterator[str]:
    """A row for each category."""
    width = max(len("all texts"), *(len(one_line(each.category)) for each in figures))
    yield (
        f"  {'':{width}}{'texts':>7}{'tokens':>9}{'same top-1, % (95 %)':>24}{'KL, nats (95 %)':>26}"
        f"{'tokens before the first':>26}{'never differ':>14}{'top-2 gap, largest':>20}"
    )
    for each in figures:
        same = f"{100 * each.same:.2f} ({100 * each.same_interval.low:.2f}–{100 * each.same_interval.high:.2f})"
        kl = f"{each.kl:.5f} ({each.kl_interval.low:.5f}–{each.kl_interval.high:.5f})"
        first = f"{_number(each.first)} ({_number(each.first_low)}–{_number(each.first_high)})"
        gap = "–" if each.gap is None else f"{each.gap:.3f}, {each.largest_gap:.3f}"
        yield (
            f"  {one_line(each.category) or 'all texts':{width}}{each.texts:>7}{each.tokens:>9,}{same:>24}{kl:>26}"
            f"{first:>26}{each.whole:>14}{gap:>20}"
        )


def _number(value: float | None) -> str:
    """A number of tokens; ∞ where there is no difference to come to."""
    return "∞" if value is None else f"{value:.0f}"
