"""Formats figures as text, and reads from `definitions.toml` what each of them means."""

import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from textual.content import Content

from specchat.app.chat.context_meter import Usage
from specchat.app.chat.reply import Reply
from specchat.app.chat.reply_figures import ReplyFigures
from specchat.app.chat.titles import split_title
from specchat.app.sanitize import escape_controls
from specchat.app.settings.settings import DROP_OLDEST, KEEP_ENDS, STOP
from specchat.engine import CLOCKS, WINDOW_S, Captured, Fate, Metrics, Ready, Round, Speedup, size_text
from specchat.engine.tools.lane_figures import SAMPLED

NOTHING = "–"
"""Shown for a figure without a value yet."""

BARS = " ▁▂▃▄▅▆▇█"

FATES: dict[Fate, str] = {
    Fate.ACCEPTED: "drafted, and accepted by the target",
    Fate.REJECTED: "drafted, and rejected by the target",
    Fate.DISCARDED: "drafted, not tested",
    Fate.CORRECTION: "drawn by the target instead of a rejected token",
    Fate.BONUS: "drawn by the target after every draft was accepted",
    Fate.PLAIN: "drawn by the target in a round without a draft",
}
"""Meaning of each fate that specchat's own engine reports."""
UNTOLD = "the server does not report the fate of this token"
"""Meaning of `Fate.UNKNOWN`."""
UNSURE = 0.15
"""Relative standard error from which on a measured speedup is shown without it, as "about"."""
FEW = 5
"""Tested tokens from which on their acceptance is a percentage."""
EVEN = 1.05
"""Speedups below this are none in words."""
LOSSES = "acceptance varies", "verifying several tokens", "overhead"
"""Labels of the factors between the predicted and the measured speedup."""


def percent(share: float | None) -> str:
    """0.714 as 71 %."""
    return NOTHING if share is None else f"{share * 100:.0f} %"


def counted(number: int, name: str) -> str:
    """1 token, 2 tokens."""
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def accepted_share(metrics: Metrics) -> str:
    """The acceptance rate: 71 % accepted; of few tested tokens, their numbers."""
    if metrics.tested < FEW:
        return f"{metrics.accepted} of {metrics.tested} accepted"
    return f"{percent(metrics.acceptance)} accepted"


def rate(value: float | None) -> str:
    """Tokens per second, or τ, with three significant digits."""
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


def clock_time(seconds: float, whole: float = 60.0) -> str:
    """75.3 as 1:15; of a `whole` of a few seconds, 2.31 as 2.3 s."""
    if whole < 10:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def graphs(captured: Ready | Captured) -> str:
    """CUDA graphs captured so far: 96 · 0.4 GB · 0:52."""
    return f"{captured.graphs} · {size_text(captured.graph_bytes)} · {clock_time(captured.warm_up_s)}"


def meter(share: float | None, width: int) -> tuple[str, str]:
    """A bar of `width` cells, as its full and its empty part."""
    half_cells = round((share or 0.0) * width * 2)
    full = "━" * (half_cells // 2) + ("╸" if half_cells % 2 else "")
    return full, "━" * (width - len(full))


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values as bars, the highest of them as a full one."""
    shown = values[-width:]
    top = max(shown, default=0.0) or 1.0
    return "".join(BARS[max(1, round(value / top * 8))] for value in shown)


def summary(figures: ReplyFigures, *, with_speedup: bool = True) -> list[str]:
    """The figures of a reply for the line below it, the most important first."""
    metrics = figures.metrics
    if not metrics.rounds:
        return []
    parts = [faster(figures.gain)] if with_speedup and figures.gain is not None else []
    if metrics.tested:
        parts.append(accepted_share(metrics))
    elif metrics.unknown:
        parts += [] if metrics.mean_emitted_length is None else [f"τ {rate(metrics.mean_emitted_length)}"]
        parts += [accepted] if (accepted := accepted_of_drafted(metrics)) else []
    return [*parts, f"{rate(metrics.tokens_per_second)} tok/s", counted(metrics.emitted, "token")]


def faster(gain: Speedup) -> str:
    """The measured speedup in words."""
    if 1 / EVEN < gain.measured < EVEN:
        return "as fast as without drafts"
    words = f"{gain.measured:.1f}× faster" if gain.measured > 1 else f"{(1 - gain.measured) * 100:.0f} % slower"
    return words if gain.error < UNSURE else f"about {words}"


def measured(gain: Speedup | None, *, running: bool) -> str:
    """The measured speedup with its standard error, once that is small."""
    if gain is None:
        return "measuring …" if running else "not measured"
    if gain.error >= UNSURE:
        return f"about {gain.measured:.1f}×"
    return f"{times(gain.measured)} ± {gain.measured * gain.error:.2f}"


def losses(gain: Speedup) -> list[tuple[str, str]]:
    """Why the measured speedup differs from the predicted one: factors between them, by their labels."""
    factors = (gain.acceptance, gain.passes, gain.overhead)
    return [(label, change(factor)) for label, factor in zip(LOSSES, factors, strict=True)]


def accepted_of_drafted(metrics: Metrics) -> str:
    """What a server reports about all drafts together; empty without a report."""
    totals = metrics.totals
    if totals is None or totals.accepted is None or totals.drafted is None:
        return ""
    return f"{totals.accepted} of {totals.drafted} drafted accepted"


def machine(ready: Ready) -> list[str]:
    """Device, number format and memory, the most important first."""
    if ready.observed:
        return [f"observed · {ready.observed}"]
    return [ready.device, ready.dtype, size_text(ready.weight_bytes + ready.cache_bytes)]


CELLS = 5
FULL, EMPTY = "▮", "▯"
GOES = {
    STOP: "the prompt is not sent",
    DROP_OLDEST: "the oldest turns are left out",
    KEEP_ENDS: "turns between the first and the last are left out",
}
"""What happens to a prompt that does not fit, by the setting."""


def context_bar(usage: Usage, when_full: str) -> Content:
    """The bar, used and available tokens, and what happens on overflow."""
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
    """Usage of the context by part, and what happens when it is full."""
    parts = " · ".join(f"{name} {tokens:,}" for name, tokens in context_rows(usage))
    return f"{parts} · of {usage.context:,} tokens\nwhen full: {when_full}, {GOES[when_full]} (/context)"


def one_line(text: str) -> str:
    """The text on one line: control characters, line ends and tabs are visible signs."""
    return escape_controls(text).replace("\n", "↵").replace("\t", "⇥")


def cut(text: str, width: int) -> str:
    """The text cut to `width` cells, with an ellipsis."""
    return text if cell_len(text) <= width else set_cell_size(text, max(width - 1, 0)) + "…"


def cut_title(title: str, width: int) -> str:
    """A chat's title cut to `width` cells, before what tells it from others with the same prompt."""
    stem, distinction = split_title(title)
    if cell_len(title) <= width or not distinction:
        return cut(title, width)
    end = distinction[-(width * 2 // 3) :]
    return cut(stem, width - cell_len(end)) + end


def what_became_of_drafts(metrics: Metrics) -> str:
    """Known fates of the drafted tokens."""
    if metrics.unknown and not metrics.tested:
        return accepted_of_drafted(metrics) or "the server does not report its drafts"
    drafted = metrics.accepted + metrics.wasted
    return f"{drafted} drafted: {became(metrics)}" if drafted else "nothing drafted"


def became(counts: Metrics | Round) -> str:
    """Numbers of drafted tokens by their fates."""
    return f"{counts.accepted} accepted, {counts.rejected} rejected, {counts.discarded} discarded"


def emitted(metrics: Metrics) -> str:
    """Number of emitted tokens, and of rounds."""
    tokens = counted(metrics.emitted, "token")
    return tokens if metrics.passes is None else f"{tokens} in {counted(metrics.passes, 'round')}"


def change(factor: float) -> str:
    """0.92 as −8 %."""
    share = round((factor - 1) * 100)
    return f"{'−' if share < 0 else '+'}{abs(share)} %" if share else "±0 %"


def reading(reply: Reply) -> list[tuple[str, str]]:
    """How much of the prompt was in the cache, and the time that this saved, by their labels."""
    tokens, reused = reply.figures.metrics.prompt_tokens, reply.figures.metrics.reused_tokens
    rows = [("prompt", f"{reused:,} of {tokens:,} reused" if tokens else NOTHING)]
    return [*rows, ("time saved", f"at least {duration(reply.saved_s)}")] if reply.saved_s else rows


class Figure(NamedTuple):
    """A figure: its label, its definition, and an explanation for beginners, which side-by-side figures lack."""

    label: str
    definition: str
    sentence: str = ""
    picture: str = ""


@cache
def definitions(group: str) -> list[Figure]:
    """Figures of a group: the "figures" of a reply, or "side_by_side" for two lanes."""
    groups = tomllib.loads(Path(__file__).with_name("definitions.toml").read_text(encoding="utf-8"))
    texts = {"window_s": f"{WINDOW_S:g}", "clocks": CLOCKS, "sampled": SAMPLED}
    return [Figure(**row | {"definition": row["definition"].format(**texts)}) for row in groups[group]]
