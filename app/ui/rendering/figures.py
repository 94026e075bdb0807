"""Formats figures as text. What each of them means: `app.ui.rendering.definitions`."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from specchat.app.chat.context_meter import Usage
from specchat.app.settings.settings import DROP_OLDEST, KEEP_ENDS, STOP
from specchat.engine import Fate, Metrics, Ready

NOTHING = "–"
"""Stands for a figure that has nothing to divide by yet."""

BARS = " ▁▂▃▄▅▆▇█"

FATES: dict[Fate, str] = {
    Fate.ACCEPTED: "drafted, and kept by the target",
    Fate.REJECTED: "drafted, and refused by the target",
    Fate.DISCARDED: "drafted behind a rejection, never judged",
    Fate.CORRECTION: "drawn by the target in place of a rejected token",
    Fate.BONUS: "drawn by the target after every draft was accepted",
    Fate.PLAIN: "drawn by the target in a round without a draft",
}
"""What an engine of ours says of its tokens."""
UNTOLD = "the server does not say what became of it"
"""What `Fate.UNKNOWN` means."""
PER_STEP = ("for each step of the big model", "per big-model step", "a step")
"""What τ counts, in as many words as there is room for."""


def percent(share: float | None) -> str:
    """0.714 as 71 %."""
    return NOTHING if share is None else f"{share * 100:.0f} %"


def rate(value: float | None) -> str:
    """Tokens per second, or τ: three digits that matter."""
    if value is None:
        return NOTHING
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def times(factor: float | None) -> str:
    """1.31 as 1.31×."""
    return NOTHING if factor is None else f"{factor:.2f}×"


def duration(seconds: float | None) -> str:
    """0.412 as 412 ms, 2.31 as 2.3 s."""
    if seconds is None:
        return NOTHING
    return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else f"{seconds:.1f} s"


def size(count: int) -> str:
    """Bytes as 0.27 GB or 94 MB."""
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"


def clock_time(seconds: float) -> str:
    """75.3 as 1:15."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def meter(share: float | None, width: int) -> tuple[str, str]:
    """A line of `width` cells as its full and its empty part."""
    half_cells = round((share or 0.0) * width * 2)
    full = "━" * (half_cells // 2) + ("╸" if half_cells % 2 else "")
    return full, "━" * (width - len(full))


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values as bars, the highest of them as a full one."""
    shown = values[-width:]
    top = max(shown, default=0.0) or 1.0
    return "".join(BARS[max(1, round(value / top * 8))] for value in shown)


def summary(metrics: Metrics, room: int) -> list[str]:
    """The figures of a reply in `room` cells, the most telling first, to be cut where the line ends."""
    if not metrics.rounds:
        return []
    parts = [f"{rate(metrics.tokens_per_second)} tok/s"]
    if metrics.unknown and not metrics.tested:
        if metrics.mean_emitted_length is not None:
            parts.append(f"{rate(metrics.mean_emitted_length)} tokens {PER_STEP[-1]} (τ)")
        parts += [kept] if (kept := kept_of_drafted(metrics)) else []
    if metrics.tested:
        plain = [f"{rate(metrics.mean_emitted_length)} tokens {words} (τ)" for words in PER_STEP]
        left = room - len(parts[0]) - 3
        parts.append(next((words for words in plain if len(words) <= left), plain[-1]))
        parts.append(f"{percent(metrics.acceptance)} of {metrics.tested} tested kept")
    parts.append(f"{metrics.emitted} tokens")
    return parts


def kept_of_drafted(metrics: Metrics) -> str:
    """What a server says of all drafts together; empty where it says nothing."""
    totals = metrics.totals
    if totals is None or totals.accepted is None or totals.drafted is None:
        return ""
    return f"{totals.accepted} of {totals.drafted} drafted kept"


def machine(ready: Ready) -> list[str]:
    """Device, number format and memory, to be cut where the line ends."""
    if ready.observed:
        return [f"observed · {ready.observed}"]
    return [ready.device, ready.dtype, size(ready.weight_bytes + ready.cache_bytes)]


CELLS = 5
FULL, EMPTY = "▮", "▯"
GOES = {
    STOP: "the prompt is not sent",
    DROP_OLDEST: "the oldest turns are left out",
    KEEP_ENDS: "turns between the first and the last are left out",
}
"""What happens to a prompt that does not fit, by the setting."""


def context_bar(usage: Usage, when_full: str) -> Content:
    """The bar, what is taken and what there is; and what happens if that is too much."""
    cells = min(round(CELLS * usage.total / usage.context), CELLS)
    cells = max(cells, 1) if usage.total else cells
    text = f"{FULL * cells}{EMPTY * (CELLS - cells)} {usage.total:,} / {usage.context:,}"
    if usage.room > 0:
        return Content(text)
    over = f" · {-usage.room:,} too many" if usage.room else " · no room for a reply"
    return Content.styled(f"{text}{over}" if when_full == STOP else f"{text} · {GOES[when_full]}", "$warning")


def context_rows(usage: Usage) -> list[tuple[str, int]]:
    """The parts by name, in tokens."""
    rows = [("history", usage.history), ("prompt", usage.prompt), ("attached", usage.attached)]
    return [*rows, ("room for the reply", max(usage.room, 0))]


def in_words(usage: Usage, when_full: str) -> str:
    """The same, and what happens when it is full."""
    parts = " · ".join(f"{name} {tokens:,}" for name, tokens in context_rows(usage))
    return f"{parts} · of {usage.context:,} tokens\nwhen full: {when_full}, {GOES[when_full]} (/context)"
