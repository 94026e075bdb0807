"""Evaluation of drafters on texts: the target reads each text once, then the rounds of every drafter are replayed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations

from specchat.engine.drafters.none import NoDrafter
from specchat.engine.errors import EngineError, unknown_drafter
from specchat.engine.models.encoder_decoder import require_decoder_only
from specchat.engine.progress import ignore_progress
from specchat.engine.request import MAX_GAMMA, Sampling
from specchat.engine.tools.evaluate.figures import Figures, only_one
from specchat.engine.tools.evaluate.rounds import Course, Drafting, Way
from specchat.engine.tools.evaluate.text_runner import finish, read
from specchat.engine.tools.evaluate.texts import EvaluateOptions, Text, select
from specchat.engine.tools.report import Table, csv_report, json_report, one_line, paragraphs
from specchat.engine.tools.runner import Say, config_of
from specchat.engine.worker.assembly import Assembly, assemble
from specchat.engine.worker.warm_up import warm_up

VERSION = 1
"""Version of the JSON object."""
_BAR = 30
"""Columns of the longest bar."""
_EXAMPLES = 5
_BEFORE = 8
"""Tokens shown before a token that only one drafter predicted."""
_CSV = ("drafter", "gamma", "category", "texts", "tested", "accepted", "alpha", "tau", "c", "predicted_speedup")


@dataclass(frozen=True)
class Evaluation:
    """Drafters along texts."""

    target: str
    temperature: float
    texts: tuple[Text, ...]
    courses: Mapping[Way, Sequence[Course]]
    """One for each text."""
    agreed: int
    """Tokens of all replies that are the target's greedy choice."""
    reading_s: float
    """Time the target took to read all texts."""
    drafting_s: float
    """Time of all rounds."""
    problems: tuple[str, ...]
    """A sentence for each entry that could not be used."""
    name: Callable[[int], str]
    """The text of a token."""

    @property
    def tokens(self) -> int:
        """Tokens of all replies."""
        return sum(len(text.reply) for text in self.texts)

    def figures(self) -> list[Figures]:
        """Figures over all texts, then over each category if there are several."""
        categories = list(dict.fromkeys(text.category for text in self.texts))
        found = [Figures.of(*way, "", courses) for way, courses in self.courses.items()]
        for category in categories if len(categories) > 1 else ():
            for way, courses in self.courses.items():
                found.append(Figures.of(*way, category, [each for each in courses if each.category == category]))
        return found

    def text(self) -> str:
        """Tables with bars for τ, and tokens that one drafter predicted and another did not."""
        at = f" at temperature {self.temperature:g}" if self.temperature else ""
        head = (
            f"{self.target}{at} on {_counted(len(self.texts), 'text')}, {self.tokens:,} tokens of replies; "
            f"{100 * self.agreed / self.tokens:.0f} % of them are its own greedy choice"
        )
        figures = self.figures()
        categories = dict.fromkeys(each.category for each in figures)
        return paragraphs(
            "\n".join([head, *(f"left out: {one_line(problem)}" for problem in self.problems)]),
            *(_tables([each for each in figures if each.category == category], category) for category in categories),
            *("\n".join(self._difference(*pair)) for pair in combinations(self.courses, 2)),
            f"reading {self.reading_s:.1f} s, all rounds of all drafters {self.drafting_s:.1f} s",
        )

    def json(self) -> str:
        """One object, with the positions of tokens that only one of two drafters predicted."""
        pairs = [
            {
                "has": one._asdict(),
                "has_not": other._asdict(),
                "places": [
                    only_one(ours.predicted, theirs.predicted)
                    for ours, theirs in zip(self.courses[one], self.courses[other], strict=True)
                ],
            }
            for first, second in combinations(self.courses, 2)
            for one, other in ((first, second), (second, first))
        ]
        texts = [
            {"name": text.name, "category": text.category, "prompt_tokens": len(text.prompt), "tokens": text.reply}
            for text in self.texts
        ]
        same = ("agreed", "reading_s", "drafting_s", "problems")
        return json_report(
            "evaluate",
            VERSION,
            {
                "target": self.target,
                "temperature": self.temperature,
                "texts": texts,
                **{name: getattr(self, name) for name in same},
                "figures": [asdict(each) for each in self.figures()],
                "only_one": pairs,
            },
        )

    def csv(self) -> str:
        """A line for each drafter, γ and category."""
        positions = [f"position_{place + 1}" for place in range(MAX_GAMMA)]
        rows = [
            [
                *(getattr(each, name) for name in _CSV),
                *each.alpha_interval,
                *each.tau_interval,
                *each.by_position,
                *[""] * (MAX_GAMMA - len(each.by_position)),
            ]
            for each in self.figures()
        ]
        return csv_report([*_CSV, "alpha_low", "alpha_high", "tau_low", "tau_high", *positions], rows)

    def _difference(self, one: Way, other: Way) -> Iterator[str]:
        """How many tokens each of two predicted and the other did not, with examples."""
        for has, has_not in ((one, other), (other, one)):
            places = [
                (text, place)
                for text, ours, theirs in zip(self.texts, self.courses[has], self.courses[has_not], strict=True)
                for place in only_one(ours.predicted, theirs.predicted)
            ]
            yield f"{has} has, {has_not} has not: {_counted(len(places), 'token')}"
            for text, place in places[:: max(len(places) // _EXAMPLES, 1)][:_EXAMPLES]:
                before = "".join(self.name(token) for token in text.reply[max(place - _BEFORE, 0) : place])
                yield f"    {one_line(before)}▸{one_line(self.name(text.reply[place]))}"


def _counted(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _tables(figures: Sequence[Figures], category: str) -> str:
    """Figures of one category, and a bar for each τ."""
    rows = [
        (
            str(Way(each.drafter, each.gamma)),
            f"{each.tau:.2f} ({each.tau_interval})",
            f"{each.alpha:.2f} ({each.alpha_interval})",
            f"{each.c:.3f}",
            f"{each.predicted_speedup:.2f}×",
            " ".join(f"{100 * rate:.0f}" for rate in each.by_position),
        )
        for each in figures
    ]
    header = ("", "τ (95 %)", "α (95 %)", "c", "predicted", "by position, %")
    longest = max(each.tau for each in figures)
    bars = [
        (str(Way(each.drafter, each.gamma)), f"{'█' * round(_BAR * each.tau / longest)} τ {each.tau:.2f}")
        for each in figures
    ]
    table = Table(header, rows, one_line(category) or "all texts").text()
    return f"{table}\n\n{Table(('', ''), bars, names=2).text()}"


def evaluate(options: EvaluateOptions, say: Say) -> Evaluation:
    """Read the texts with the target, then run the rounds of every drafter along them.

    Args:
        options: options of the command.
        say: called with one-line progress messages.

    Raises:
        EngineError: a model is unavailable, a drafter is unknown, or no text can be used.
    """
    config = config_of(options, slots=1, context=options.context)
    made = assemble(config, ignore_progress)
    require_decoder_only(made.model, "specchat evaluate reads texts with")
    ways = _ways(options, made)
    texts, problems = select(options, made.model.tokenizer, made.target.context)
    warm_up(made)
    drafting = Drafting(made)
    courses: dict[Way, list[Course]] = {way: [] for way in ways}
    sampling, agreed = Sampling(temperature=options.temperature), 0
    reading_s = drafting_s = 0.0
    for number, text in enumerate(texts, 1):
        say(f"text {number} of {len(texts)}: {text.name}")
        reading = finish(read(made.target, text, config.prefill_chunk, sampled=not sampling.greedy))
        agreed += reading.agreed
        reading_s += reading.seconds
        started = time.perf_counter()
        for way in ways:
            courses[way].append(finish(drafting.along(reading, way, sampling)))
        drafting_s += time.perf_counter() - started
    return Evaluation(
        target=made.model.name,
        temperature=options.temperature,
        texts=texts,
        courses=courses,
        agreed=agreed,
        reading_s=reading_s,
        drafting_s=drafting_s,
        problems=problems,
        name=lambda token: str(made.model.tokenizer.decode([token])),
    )


def _ways(options: EvaluateOptions, made: Assembly) -> list[Way]:
    known = [name for name in made.drafters if name != NoDrafter.name]
    for name in options.drafters:
        if name not in known:
            raise EngineError(unknown_drafter(name, known))
    names = options.drafters or known
    return [Way(name, gamma) for name in dict.fromkeys(names) for gamma in dict.fromkeys(options.gammas)]
