"""Evaluation of drafters on texts: the target reads each text once, then the rounds of every drafter are replayed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from itertools import combinations, permutations

from specchat.engine.engine import Engine
from specchat.engine.errors import check
from specchat.engine.models.packed.load import require_decoder_only
from specchat.engine.progress import ignore_progress
from specchat.engine.registry import unknown_drafter
from specchat.engine.request import MAX_GAMMA, NO_DRAFTER, Request
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.prompt import encode
from specchat.engine.settings import Sampling
from specchat.engine.stats.speedup import speedup_of_rounds
from specchat.engine.tools.data_sets import read_entries
from specchat.engine.tools.evaluate.reading import finish, read
from specchat.engine.tools.evaluate.rounds import Course, Drafting, Place, Way
from specchat.engine.tools.evaluate.texts import (
    EvaluateOptions,
    Interval,
    Text,
    by_category,
    interval,
    select,
    with_interval,
)
from specchat.engine.tools.report import Columns, Table, csv_report, json_report, one_line, paragraphs
from specchat.engine.tools.runner import Say
from specchat.engine.worker.assembly import Assembly, assemble, memory_errors

MOST_SAMPLED = 500
"""Most tokens of a sampled reply that are aligned: the target's logits are kept for each."""
OTHER_PROMPT = "it cannot be read: the model, the template or an earlier message has changed since this reply was made"
_BAR = 30
"""Columns of the longest bar."""
_EXAMPLES = 5
_BY_DRAFT = "accepted / tested"
_COLUMNS: Columns = {
    "": lambda each: str(Way(each.drafter, each.gamma)),
    "τ (95 %)": lambda each: with_interval(each.texts, (each.tau, *each.tau_interval)),
    "α (95 %)": lambda each: with_interval(each.texts, (each.alpha, *each.alpha_interval)),
    "c": lambda each: f"{each.c:.3f}",
    "predicted": lambda each: f"{each.predicted_speedup:.2f}×",
    "by position, %": lambda each: " ".join(f"{100 * rate:.0f}" for rate in each.by_position),
    _BY_DRAFT: lambda each: ", ".join(f"{name} {a:.0f}/{n}" for name, (n, a) in each.by_draft.items()),
}
_CSV = ("drafter", "gamma", "category", "texts", "tested", "accepted", "alpha", "tau", "c", "predicted_speedup")


@dataclass(frozen=True, slots=True)
class Figures:
    """One drafter at one γ over some texts."""

    drafter: str
    gamma: int
    category: str
    """Empty for all texts."""
    texts: int
    tested: int
    accepted: float
    """For sampled texts the expected number: the sum of β."""
    by_position: tuple[float, ...]
    """Accepted / tested at draft position 1, 2, …"""
    alpha: float
    """Accepted / tested; for sampled texts the mean of Σ min(p, q)."""
    alpha_interval: Interval
    tau: float
    """Tokens emitted / rounds."""
    tau_interval: Interval
    c: float
    """Time of a draft step / time of a plain pass of the target."""
    predicted_speedup: float
    """Speedup by Theorem 3.8, from α, c and the draft lengths that were run."""
    by_draft: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    """Tested and accepted tokens of each drafter that made drafts: of a combined one its parts, and `grammar`."""

    @classmethod
    def of(cls, drafter: str, gamma: int, category: str, courses: Sequence[Course]) -> Figures:
        """Sum up the courses of one drafter."""
        tested = sum((course.tested for course in courses), Counter[int]())
        lengths = sum((course.lengths for course in courses), Counter[int]())
        accepted = {place: sum(course.accepted.get(place, 0) for course in courses) for place in tested}
        alpha = _alpha(courses)
        pass_s = sum(course.pass_s * course.timed_steps for course in courses)
        c = sum(course.draft_s for course in courses) / pass_s if pass_s else 0.0
        return cls(
            drafter=drafter,
            gamma=gamma,
            category=category,
            texts=len(courses),
            tested=tested.total(),
            accepted=sum(accepted.values()),
            by_position=tuple(accepted[place] / tested[place] for place in sorted(tested)),
            alpha=alpha,
            alpha_interval=interval(courses, _alpha),
            tau=_tau(courses),
            tau_interval=interval(courses, _tau),
            c=c,
            predicted_speedup=speedup_of_rounds(alpha, lengths, c),
            by_draft=_by_draft(courses),
        )


def _by_draft(courses: Sequence[Course]) -> dict[str, tuple[int, float]]:
    names = dict.fromkeys(name for course in courses for name in course.by_draft)
    counts = {name: [course.by_draft.get(name, (0, 0.0)) for course in courses] for name in names}
    return {name: (sum(each[0] for each in all_), sum(each[1] for each in all_)) for name, all_ in counts.items()}


def _alpha(courses: Sequence[Course]) -> float:
    tested = sum(course.tested.total() for course in courses)
    accepted = sum(sum(course.accepted.values()) for course in courses)
    return min(accepted / tested, 1.0) if tested else 0.0  # a sum of float32 shares may be a little above 1


def _tau(courses: Sequence[Course]) -> float:
    return sum(course.emitted for course in courses) / sum(course.rounds for course in courses)


@dataclass
class Evaluation:
    """Drafters along texts."""

    target: str
    temperature: float
    texts: Sequence[Text]
    problems: Sequence[str]
    """A sentence for each entry that could not be used."""
    courses: Mapping[Way, list[Course]]
    """One for each text."""
    name: Callable[[int], str]
    """The text of a token."""
    agreed: int = 0
    """Tokens of all replies that are the target's greedy choice."""
    reading_s: float = 0.0
    """Time the target took to read all texts."""
    drafting_s: float = 0.0
    """Time of all rounds."""

    @property
    def tokens(self) -> int:
        """Tokens of all replies."""
        return sum(len(text.reply) for text in self.texts)

    def figures(self) -> list[Figures]:
        """Figures over all texts, then over each category if there are several."""
        parts = {way: dict(by_category(done, lambda each: each.category)) for way, done in self.courses.items()}
        categories = next(iter(parts.values()))
        return [Figures.of(*way, category, parts[way][category]) for category in categories for way in parts]

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
            *("\n".join(self._differences(*pair)) for pair in combinations(self.courses, 2)),
            f"reading {self.reading_s:.1f} s, all rounds of all drafters {self.drafting_s:.1f} s",
        )

    def json(self) -> str:
        """One object, with the positions of tokens that only one of two drafters predicted."""
        pairs = [
            {"has": has._asdict(), "has_not": has_not._asdict(), "places": self._only_one(has, has_not)}
            for pair in combinations(self.courses, 2)
            for has, has_not in permutations(pair)
        ]
        same = ("target", "temperature", "agreed", "reading_s", "drafting_s", "problems")
        return json_report(
            "evaluate",
            {
                **{name: getattr(self, name) for name in same},
                "texts": [text.json() for text in self.texts],
                "figures": [asdict(each) for each in self.figures()],
                "only_one": pairs,
            },
        )

    def csv(self) -> str:
        """A line for each drafter, γ and category."""
        positions = [f"position_{place + 1}" for place in range(MAX_GAMMA)]
        rows = []
        for each in self.figures():
            figures, empty = [getattr(each, name) for name in _CSV], [""] * (MAX_GAMMA - len(each.by_position))
            rows.append([*figures, *each.alpha_interval, *each.tau_interval, *each.by_position, *empty])
        return csv_report([*_CSV, "alpha_low", "alpha_high", "tau_low", "tau_high", *positions], rows)

    def _only_one(self, has: Way, has_not: Way) -> list[list[int]]:
        """For each text, the positions of tokens that one drafter predicted and the other did not."""
        pairs = zip(self.courses[has], self.courses[has_not], strict=True)
        predicted = [zip(ours.predicted, theirs.predicted, strict=True) for ours, theirs in pairs]
        return [[place for place, both in enumerate(each) if both == (True, False)] for each in predicted]

    def _differences(self, *pair: Way) -> Iterator[str]:
        """Numbers of tokens that one of two drafters predicted and the other did not, with examples."""
        for has, has_not in permutations(pair):
            only = zip(self.texts, self._only_one(has, has_not), strict=True)
            places = [(text, place) for text, its_places in only for place in its_places]
            yield f"{has} has, {has_not} has not: {_counted(len(places), 'token')}"
            for text, place in places[:: max(len(places) // _EXAMPLES, 1)][:_EXAMPLES]:
                yield f"    {text.before(place, self.name)}▸{one_line(self.name(text.reply[place]))}"


def _counted(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _tables(figures: Sequence[Figures], category: str) -> str:
    """Figures of one category, and a bar for each τ."""
    longest = max(each.tau for each in figures)
    bars = [
        (str(Way(each.drafter, each.gamma)), f"{'█' * round(_BAR * each.tau / longest)} τ {each.tau:.2f}")
        for each in figures
    ]
    several = any(each.by_draft for each in figures)
    columns = {name: show for name, show in _COLUMNS.items() if several or name != _BY_DRAFT}
    table = Table.of(figures, columns, one_line(category) or "all texts").text()
    return f"{table}\n\n{Table(('', ''), bars, names=2).text()}"


@memory_errors()
def evaluate(options: EvaluateOptions, say: Say) -> Evaluation:
    """Read the texts with the target, then run the rounds of every drafter along them.

    Args:
        options: options of the command.
        say: called with one-line progress messages.

    Raises:
        EngineError: a model is unavailable, a drafter is unknown, or no text can be used.
    """
    entries = read_entries(options.files)
    config = options.config(slots=1)
    made = assemble(config, ignore_progress)
    require_decoder_only(made.model, "specchat evaluate reads texts with")
    known = [name for name in made.drafters if name != NO_DRAFTER]
    _require_drafters(options.drafters, known)
    ways = [Way(name, gamma) for name in options.drafters or known for gamma in options.gammas]
    courses: dict[Way, list[Course]] = {way: [] for way in ways}
    texts, problems = select(options, entries, made.model.tokenizer, made.target.context)
    drafting = Drafting(made)
    texts = [text for text in texts if drafting.follows(text, problems)]
    check(texts, "; ".join(["there is no text to evaluate on", *problems[:3]]))
    made.warm_up()
    while made.capture_next():
        pass
    sampling, tokenizer = Sampling(temperature=options.temperature), made.model.tokenizer
    found = Evaluation(
        made.model.name, options.temperature, texts, problems, courses, lambda token: str(tokenizer.decode([token]))
    )
    for number, text in enumerate(texts, 1):
        say(f"text {number} of {len(texts)}: {text.name}")
        reading = finish(read(made.target, text, config.prefill_chunk, sampled=not sampling.greedy))
        found.agreed += reading.agreed
        found.reading_s += reading.seconds
        started = time.perf_counter()
        for way, done in courses.items():
            done.append(finish(drafting.along(reading, way, sampling)))
        found.drafting_s += time.perf_counter() - started
    return found


def _require_drafters(names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        check(name in known, unknown_drafter(name, known))


@dataclass(frozen=True, slots=True)
class Alignment:
    """Predictions of two drafters for every token of a reply."""

    temperature: float
    """Temperature that the reply was sampled at; 0 for greedy."""
    figures: tuple[Figures, Figures]
    """Figures of each drafter, over the reply."""
    places: tuple[Sequence[Place], Sequence[Place]]
    """For each drafter, one place per token of the reply."""
    names: Mapping[int, str]
    """Text of every proposed token."""


def align(
    engine: Engine, request: Request, reply: Sequence[int], prompt_tokens: int, drafters: tuple[str, str], gamma: int
) -> Future[Alignment]:
    """Read a reply with the target of a running engine, then let two drafters draft along it, between its rounds.

    Args:
        engine: engine with loaded models.
        request: prompt and sampling of the reply, and the texts that it is in itself (`Request.not_drafted_from`).
        reply: token ids.
        prompt_tokens: length of the prompt when the reply was made.
        drafters: names of two drafters.
        gamma: draft length.

    Returns:
        The alignment; an `EngineError` if the engine lacks a drafter or the prompt has changed.
    """
    sampling = request.sampling

    def work(made: Assembly, slot: int) -> Generator[None, None, Alignment]:
        _require_drafters(drafters, list(made.drafters))
        prompt = encode(request, made.model.tokenizer)
        check(len(prompt) == prompt_tokens, OTHER_PROMPT)
        room = max(made.target.context - len(prompt) - 1, 0)
        judged = tuple(reply[: room if sampling.greedy else min(room, MOST_SAMPLED)])
        text = Text("this reply", "", tuple(prompt), judged, request.not_drafted_from, request)
        check(text.reply, "it cannot be read: it has no token")
        chunk, drafting = engine.config.prefill_chunk, Drafting(made)
        reading = yield from read(made.target, text, chunk, sampled=not sampling.greedy, slot=slot)
        one = yield from drafting.along(reading, Way(drafters[0], gamma), sampling)
        other = yield from drafting.along(reading, Way(drafters[1], gamma), sampling)
        detokenizer = Detokenizer(made.model.tokenizer, ())
        offered = {token for course in (one, other) for place in course.places for token in place.offered}
        return Alignment(
            temperature=0.0 if sampling.greedy else sampling.temperature,
            figures=(Figures.of(drafters[0], gamma, "", [one]), Figures.of(drafters[1], gamma, "", [other])),
            places=(one.places, other.places),
            names={token: detokenizer.name(token) for token in offered},
        )

    return engine.borrow(work)
