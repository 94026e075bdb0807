"""What an evaluation found, as text, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, NamedTuple

from specchat.engine.request import MAX_GAMMA
from specchat.engine.tools.evaluate.course import Course
from specchat.engine.tools.evaluate.figures import Figures, only_one
from specchat.engine.tools.evaluate.lines import one_line
from specchat.engine.tools.evaluate.texts import Text

VERSION = 1
_BAR = 30
"""Columns of the longest bar."""
_EXAMPLES = 5
_BEFORE = 8
"""Tokens shown before one that only one drafter had."""


class Way(NamedTuple):
    """A drafter and its draft length."""

    drafter: str
    gamma: int

    def __str__(self) -> str:
        return f"{self.drafter} γ {self.gamma}"


@dataclass(frozen=True)
class Evaluation:
    """Drafters along texts."""

    target: str
    temperature: float
    texts: tuple[Text, ...]
    courses: Mapping[Way, Sequence[Course]]
    """One for each text."""
    agreed: int
    """Tokens of all replies that are the target's own greedy choice."""
    reading_s: float
    """Time the target took to read all texts."""
    drafting_s: float
    """Time of all rounds."""
    problems: tuple[str, ...]
    """What could not be used, a sentence each."""
    name: Callable[[int], str]
    """The text of a token."""

    @property
    def tokens(self) -> int:
        """Tokens of all replies."""
        return sum(len(text.reply) for text in self.texts)

    def figures(self) -> list[Figures]:
        """Of every way, over all texts and then over each category where there are several."""
        categories = list(dict.fromkeys(text.category for text in self.texts))
        found = [Figures.of(*way, "", courses) for way, courses in self.courses.items()]
        for category in categories if len(categories) > 1 else ():
            for way, courses in self.courses.items():
                found.append(Figures.of(*way, category, [each for each in courses if each.category == category]))
        return found

    def text(self) -> str:
        """A table to read, bars to look at, and what one drafter had and another had not."""
        at = f" at temperature {self.temperature:g}" if self.temperature else ""
        lines = [
            f"{self.target}{at} on {_counted(len(self.texts), 'text')}, {self.tokens:,} tokens of replies; "
            f"{100 * self.agreed / self.tokens:.0f} % of them are its own greedy choice",
            *(f"left out: {one_line(problem)}" for problem in self.problems),
            "",
        ]
        figures = self.figures()
        for category in dict.fromkeys(each.category for each in figures):
            lines += [*_table([each for each in figures if each.category == category], category), ""]
        for one, other in combinations(self.courses, 2):
            lines += [*self._difference(one, other), ""]
        lines.append(f"reading {self.reading_s:.1f} s, all rounds of all drafters {self.drafting_s:.1f} s")
        return "\n".join(lines)

    def json(self) -> str:
        """One object, with the places of tokens that only one of two drafters had."""
        pairs = [
            {
                "has": one._asdict(),
                "has_not": other._asdict(),
                "places": [
                    only_one(ours.drafted, theirs.drafted)
                    for ours, theirs in zip(self.courses[one], self.courses[other], strict=True)
                ],
            }
            for first, second in combinations(self.courses, 2)
            for one, other in ((first, second), (second, first))
        ]
        whole: dict[str, Any] = {
            "specchat_evaluate": VERSION,
            "target": self.target,
            "temperature": self.temperature,
            "texts": [
                {"name": text.name, "category": text.category, "prompt_tokens": len(text.prompt), "tokens": text.reply}
                for text in self.texts
            ],
            "agreed": self.agreed,
            "reading_s": self.reading_s,
            "drafting_s": self.drafting_s,
            "problems": self.problems,
            "figures": [asdict(each) for each in self.figures()],
            "only_one": pairs,
        }
        return json.dumps(whole, ensure_ascii=False, indent=1)

    def csv(self) -> str:
        """A line for each drafter, γ and category."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        positions = [f"position_{place + 1}" for place in range(MAX_GAMMA)]
        plain = (
            "drafter",
            "gamma",
            "category",
            "texts",
            "tested",
            "accepted",
            "alpha",
            "tau",
            "c",
            "predicted_speedup",
        )
        writer.writerow([*plain, "alpha_low", "alpha_high", "tau_low", "tau_high", *positions])
        for each in self.figures():
            padded = [*each.by_position, *[""] * (MAX_GAMMA - len(each.by_position))]
            writer.writerow(
                [*(getattr(each, name) for name in plain), *each.alpha_interval, *each.tau_interval, *padded]
            )
        return out.getvalue()

    def _difference(self, one: Way, other: Way) -> Iterator[str]:
        """How many tokens each of two had that the other had not, and some of them where they stand."""
        for has, has_not in ((one, other), (other, one)):
            places = [
                (text, place)
                for text, ours, theirs in zip(self.texts, self.courses[has], self.courses[has_not], strict=True)
                for place in only_one(ours.drafted, theirs.drafted)
            ]
            yield f"{has} has, {has_not} has not: {_counted(len(places), 'token')}"
            for text, place in places[:: max(len(places) // _EXAMPLES, 1)][:_EXAMPLES]:
                before = "".join(self.name(token) for token in text.reply[max(place - _BEFORE, 0) : place])
                yield f"    {one_line(before)}▸{one_line(self.name(text.reply[place]))}"


def _counted(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _table(figures: Sequence[Figures], category: str) -> Iterator[str]:
    """Rows of one category, each with a bar for τ."""
    yield one_line(category) or "all texts"
    yield f"  {'':16}{'τ (95 %)':>20}{'α (95 %)':>20}{'c':>8}{'predicted':>11}   by position, %"
    longest = max(each.tau for each in figures)
    for each in figures:
        places = " ".join(f"{100 * rate:.0f}" for rate in each.by_position)
        tau = f"{each.tau:.2f} ({each.tau_interval.low:.2f}–{each.tau_interval.high:.2f})"
        alpha = f"{each.alpha:.2f} ({each.alpha_interval.low:.2f}–{each.alpha_interval.high:.2f})"
        yield (
            f"  {Way(each.drafter, each.gamma)!s:16}{tau:>20}{alpha:>20}{each.c:>8.3f}"
            f"{each.predicted_speedup:>10.2f}×   {places}"
        )
    yield ""
    for each in figures:
        yield f"  {Way(each.drafter, each.gamma)!s:16}{'█' * round(_BAR * each.tau / longest)} τ {each.tau:.2f}"
