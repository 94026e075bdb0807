"""Layout and segments of the timeline: the columns of each round, the signs of its tokens, and its times as a bar.

The same time is at the same column in every lane, and bars are true to scale. Rounds of several lanes at one time, as
in one batch, share a slot; each round of a lane has a separate one. Between two slots lies one empty cell, or
`PAUSE` of them where time passed: pauses and the reading of prompts are cut to that, and a bar longer than `MOST` to so
much; both are marked.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import itemgetter
from statistics import median

from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.widget import Widget

from specchat.app.chat.reply import Reply
from specchat.app.ui.rendering.figures import FATES, became, duration
from specchat.engine import Fate, Round

SCALES_MS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
"""Milliseconds of a cell."""
USUAL = 6
"""Cells of a usual round, unless the user has zoomed."""
MOST = 8 * USUAL
"""Cells of the longest bar."""
PAUSE = 3
"""Cells of a pause."""


@dataclass(slots=True)
class TimelineSlot:
    """One round of the batch: seconds, and the columns it fills."""

    start: float
    end: float
    left: int
    right: int
    cut: bool = False
    """Whether the bar is shorter than its time."""
    late: bool = False
    """Whether time passed before it."""

    def is_during(self, start: float, end: float) -> bool:
        """Whether another lane's round is at the same time: at least half of it, or of this slot."""
        return self.end - start >= min(end - start, self.end - self.start) / 2 and start < self.end


class TimelineLayout:
    """The lanes of some replies with the rounds that they have now.

    Args:
        replies: the lanes, top to bottom.
        scale: index into `SCALES_MS`, as the user chose it; otherwise the usual round says it.
        own: how many of the lanes, from the first on, are of the chat that is shown. Once they have ended, the others
            are shown up to there.
    """

    def __init__(self, replies: Sequence[Reply], scale: int | None = None, own: int | None = None) -> None:
        self.replies = list(replies)
        self.rounds = [list(reply.rounds) for reply in self.replies]
        """The rounds of each lane, also those without a slot. A server may report other ones at the end of a reply."""
        self.counts = [*map(len, self.rounds)]
        end = _end(self.replies[:own])
        timed = ((r.at - r.seconds, lane, r) for lane, of_lane in enumerate(self.rounds) for r in of_lane)
        rounds = sorted((r for r in timed if own is None or r[1] < own or r[0] < end), key=itemgetter(0))
        self.scale = _usual_scale([record for _, _, record in rounds]) if scale is None else scale
        """Index into `SCALES_MS`; None without rounds to choose it by."""
        self.ms = SCALES_MS[self.scale] if self.scale is not None else 0.0
        """Milliseconds of a cell."""
        self.slots: list[TimelineSlot] = []
        self._places: list[list[int]] = [[] for _ in self.replies]
        """The slot of each round of each lane."""
        for start, lane, record in rounds:
            places = self._places[lane]
            if self.slots and places[-1:] != [len(self.slots) - 1] and self.slots[-1].is_during(start, record.at):
                self.slots[-1].end = max(self.slots[-1].end, record.at)
            else:
                self._add(start, record)
            places.append(len(self.slots) - 1)
        self._lefts = [slot.left for slot in self.slots]
        self.width = self.slots[-1].right + 1 if self.slots else 0
        """Columns in all, with an empty one at each end."""

    def slot(self, lane: int, index: int) -> TimelineSlot:
        """The slot of a round, by its index in the reply."""
        return self.slots[self._places[lane][index]]

    def count(self, lane: int) -> int:
        """Rounds that have a slot."""
        return len(self._places[lane])

    def visible(self, lane: int, left: int, right: int) -> range:
        """Indices of the lane's rounds between two columns."""
        first = max(bisect_right(self._lefts, left) - 1, 0)
        last = bisect_right(self._lefts, right)
        places = self._places[lane]
        return range(bisect_left(places, first), bisect_left(places, last))

    def rows(self, room: int) -> list[int]:
        """First columns of the rows into which the lanes are broken between rounds, each of at most `room` cells."""
        rows = [0]
        for slot in self.slots:
            if slot.right + 1 - rows[-1] > room and slot.left - 1 > rows[-1]:
                rows.append(slot.left - 1)
        return rows

    def round_at(self, lane: int, column: int) -> int | None:
        """Index of the lane's round at this column, or the nearest one to it."""
        places = self._places[lane]
        if not places:
            return None
        slot = max(bisect_right(self._lefts, column) - 1, 0)
        return min(bisect_left(places, slot), len(places) - 1)

    def _add(self, start: float, record: Round) -> None:
        last, cell_s = self.slots[-1] if self.slots else None, self.ms / 1000
        late = last is not None and start - last.end > cell_s
        left = (last.right if last else 0) + (PAUSE if late else 1)
        cells = max(1, round(record.seconds / cell_s))
        self.slots.append(TimelineSlot(start, record.at, left, left + min(cells, MOST), cells > MOST, late))


def _end(replies: Sequence[Reply]) -> float:
    """When these replies ended; infinite while one is running."""
    if any(reply.running for reply in replies):
        return inf
    return max((reply.rounds[-1].at for reply in replies if reply.rounds), default=inf)


def _usual_scale(rounds: Sequence[Round]) -> int | None:
    """The scale for the usual one of the first 1, 2, 4, 8, … rounds: it changes only when their number has doubled."""
    if not rounds:
        return None
    known = rounds[: 1 << len(rounds).bit_length() - 1]
    usual = median(record.seconds for record in ([r for r in known if r.number] or known)) * 1000
    return min(range(len(SCALES_MS)), key=lambda scale: abs(usual / SCALES_MS[scale] - USUAL))


SIGNS = dict(zip(Fate, "●✕·◆+○?", strict=True))
_FIRST = [Fate.CORRECTION, Fate.BONUS, Fate.PLAIN, Fate.UNKNOWN, Fate.ACCEPTED, Fate.REJECTED, Fate.DISCARDED]
"""Order in which counts are shown if not all of them fit."""
PARTS = ("draft", "verify", "rest", "lane", "picked")
"""Component classes of a timeline, besides the classes of tokens."""
DRAFT, VERIFY, REST = "▓", "█", "░"
PAUSED, CUT = "‖", "//"
SHORT = {Fate.ACCEPTED: "acc", Fate.REJECTED: "rej", Fate.DISCARDED: "disc", Fate.CORRECTION: "corr"}
LEGENDS = tuple(
    Content(gap).join(
        Content.styled(f"{SIGNS[fate]} {names.get(fate, fate.value)}", f"$fate-{fate.value}") for fate in FATES
    )
    for gap, names in (("  ", {}), (" ", {}), (" ", SHORT))
)
"""What the signs mean, the longest first."""


def timeline_styles(timeline: Widget) -> dict[str, Style]:
    """Styles of the parts of a bar, of tokens (`token--…`), of their signs (`sign--…`), and of empty cells (`base`).

    Resolving one style takes as long as drawing a line with all of them, so the caller caches the result.
    """
    styles = {part: timeline.get_component_rich_style(f"timeline--{part}") for part in PARTS}
    for fate in Fate:
        styles[f"token--{fate.value}"] = token = timeline.get_component_rich_style(f"token--{fate.value}")
        styles[f"sign--{fate.value}"] = token + Style(strike=False, underline=False)  # lines would hide a sign
    styles["thin"] = styles["draft"]
    styles["base"] = timeline.rich_style
    return styles


def gap(cells: int, styles: Mapping[str, Style], *, late: bool) -> Iterator[Segment]:
    """The space between two rounds, with a mark where a pause was shortened."""
    if late and cells >= 2:
        yield Segment(" " * (cells - 2), styles["base"])
        yield Segment(PAUSED, styles["lane"])
        yield Segment(" ", styles["base"])
    else:
        yield Segment(" " * cells, styles["base"])


def token_signs(record: Round, slot: TimelineSlot, styles: Mapping[str, Style]) -> Iterator[Segment]:
    """A sign for each token, or counts if the signs do not fit; each in the colour of its fate."""
    width = slot.right - slot.left
    fates = fates_of(record)
    parts = [(fate, SIGNS[fate]) for fate in fates] if len(fates) < width else _counts(fates, width)
    for fate, text in parts:
        yield Segment(text, styles[f"sign--{fate.value}"])
    yield Segment(" " * (width - sum(len(text) for _, text in parts)), styles["base"])


def _counts(fates: Sequence[Fate], width: int) -> list[tuple[Fate, str]]:
    """The number of tokens of each fate, what does not fit is left out: of accepted ones first, as it has no sign."""
    texts = {fate: f"{SIGNS[fate]}{count if count > 1 else ''}" for fate, count in Counter(fates).items()}
    if Fate.ACCEPTED in texts and width > 1:
        texts[Fate.ACCEPTED] = str(fates.count(Fate.ACCEPTED))
    fitting: list[Fate] = []
    for fate in sorted(texts, key=_FIRST.index):
        if sum(len(texts[each]) for each in (*fitting, fate)) <= width:
            fitting.append(fate)
    return [(fate, texts[fate]) for fate in sorted(fitting, key=[Fate.ACCEPTED, *texts].index)]


def fates_of(record: Round) -> list[Fate]:
    """The fates of all drafted tokens, other candidates for the same positions included, and of the last token."""
    fates: list[Fate] = []
    for place in range(record.tested):
        tested = [Fate.REJECTED] * len(record.refused[place]) if record.refused else []
        fates += [*tested, Fate.ACCEPTED if place < record.accepted else Fate.REJECTED]
    last = [] if record.last_fate is None else [record.last_fate]
    return [*fates, *[Fate.DISCARDED] * record.discarded, *last]


def time_bar(record: Round, slot: TimelineSlot, styles: Mapping[str, Style]) -> Iterator[Segment]:
    """The bar, split by time; a part that is too short for a cell is a thin line."""
    width = slot.right - slot.left
    share = width / (record.seconds or 1.0)
    draft = round(record.draft_s * share)
    rest = width if record.observed else min(round(record.rest_s * share), width - draft)
    verify = width - draft - rest
    if draft == 0 and record.drafted and verify:
        yield Segment("▏", styles["thin"])
        verify -= 1
    if draft:
        yield Segment(DRAFT * draft, styles["draft"])
    if slot.cut and verify > len(CUT):
        before = (verify - len(CUT)) // 2
        yield Segment(VERIFY * before, styles["verify"])
        yield Segment(CUT, styles["lane"])
        verify -= before + len(CUT)
    for sign, part, cells in ((VERIFY, "verify", verify), (REST, "rest", rest)):
        if cells:
            yield Segment(sign * cells, styles[part])


def subtitle(lanes: TimelineLayout, picked: tuple[int, int] | None) -> str:
    """Fates and times of the selected round (lane and index), or the legend of the bars."""
    if picked is None:
        legend = [f"{DRAFT} draft", f"{VERIFY} verify", f"{REST} rest"]
        legend += [f"cell {lanes.ms:g} ms"] if lanes.slots else []
        legend += [f"{PAUSED} pause"] if any(slot.late for slot in lanes.slots) else []
        legend += [f"{CUT} longer"] if any(slot.cut for slot in lanes.slots) else []
        return "  ".join(legend)
    lane, index = picked
    record = lanes.rounds[lane][index]
    spent = " + ".join(map(duration, (record.draft_s, record.verify_s, record.rest_s)))
    return f"round {index + 1}: {became(record)} · {spent}"
