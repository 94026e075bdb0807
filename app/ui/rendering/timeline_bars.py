"""Segments of one round in the timeline: the signs of its tokens, and its times as a bar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.segment import Segment
from rich.style import Style

from specchat.app.ui.rendering.figures import FATES, duration
from specchat.app.ui.rendering.timeline_layout import TimelineLayout, TimelineSlot
from specchat.engine import Fate, Round

SIGNS = {
    Fate.ACCEPTED: "●",
    Fate.REJECTED: "✕",
    Fate.DISCARDED: "·",
    Fate.CORRECTION: "◆",
    Fate.BONUS: "+",
    Fate.PLAIN: "○",
    Fate.UNKNOWN: "?",
}
DRAFT, VERIFY, REST = "▓", "█", "░"
PAUSED, CUT = "┊", "//"
SHORT = {Fate.ACCEPTED: "acc", Fate.REJECTED: "rej", Fate.DISCARDED: "disc", Fate.CORRECTION: "corr"}
LEGENDS = (
    "  ".join(f"{SIGNS[fate]} {fate.value}" for fate in FATES),
    " ".join(f"{SIGNS[fate]} {fate.value}" for fate in FATES),
    " ".join(f"{SIGNS[fate]} {SHORT.get(fate, fate.value)}" for fate in FATES),
)
"""What the signs mean, the longest first."""


def gap(cells: int, styles: Mapping[str, Style], *, late: bool) -> Iterator[Segment]:
    """The space between two rounds, with a mark where a pause was shortened."""
    if late and cells >= 2:
        yield Segment(" " * (cells - 2), styles["base"])
        yield Segment(PAUSED, styles["lane"])
        yield Segment(" ", styles["base"])
    else:
        yield Segment(" " * cells, styles["base"])


def token_signs(record: Round, slot: TimelineSlot, styles: Mapping[str, Style]) -> Iterator[Segment]:
    """A sign for each token, or counts if the signs do not fit."""
    width = slot.right - slot.left
    tokens = list(record.tokens())
    if len(tokens) >= width:
        last = "" if record.last_fate is None else SIGNS[record.last_fate]
        text = f"{record.accepted}{last}" if width > 1 else last or SIGNS[Fate.ACCEPTED]
        wasted = f"−{record.wasted}"
        text += wasted if record.wasted and len(text + wasted) < width else ""
        yield Segment(text[:width].ljust(width), styles[f"token--{Fate.ACCEPTED.value}"])
        return
    for token in tokens:
        yield Segment(SIGNS[token.fate], styles[f"sign--{token.fate.value}"])
    yield Segment(" " * (width - len(tokens)), styles["base"])


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
        legend += [f"{PAUSED} pause"] if lanes.has_pauses else []
        legend += [f"{CUT} longer"] if lanes.has_cuts else []
        return "  ".join(legend)
    lane, index = picked
    record = lanes.replies[lane].rounds[index]
    return (
        f"round {record.number + 1}: {record.accepted} accepted, {record.wasted} wasted · "
        f"{duration(record.draft_s)} + {duration(record.verify_s)} + {duration(record.rest_s)}"
    )
