"""The two columns of the side-by-side mode, the figures of two lanes as text, and the summary of their last replies."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from rich.style import Style
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from specchat.app.chat.reply import Reply
from specchat.app.chat.reply_stage import Stage
from specchat.app.side_by_side.duet import SIDES, Duet
from specchat.app.side_by_side.lanes import OWN_STREAM
from specchat.app.ui.rendering.figures import NOTHING, accepted_share, counted, percent, rate, times
from specchat.app.ui.widgets.transcript import Transcript
from specchat.engine import CLOCKS, Comparison, FinishReason, LaneReady, LaneTally, Order
from specchat.engine.tools.lane_figures import first_difference

Pair = tuple[str, str]
"""What it is, and what it amounts to."""

NOT_THE_SAME_PROMPT = "not compared: an earlier text differs, so the lanes were not asked the same"
TEXTS_ONLY = "texts compared: a server gives no token ids"
BY_STREAM = "timed by its stream"
BROKEN_OFF = (FinishReason.CANCELLED, FinishReason.ERROR)


def seconds(value: float) -> str:
    """A lane's clock: it only grows, so it has a fixed form."""
    return f"{value:.2f} s"


def status(reply: Reply | None, tally: LaneTally, waits: bool) -> list[str]:
    """One line below a lane, the most telling part first; later parts may be cut off.

    Args:
        waits: whether the other lane goes first.
    """
    if reply is None:
        return ["no prompt yet"]
    if reply.stage is Stage.WAITING:
        return ["waits for the other lane" if waits else "waiting"]
    s = tally.metrics
    clock = f"◷ {seconds(tally.seconds)}"
    parts = [clock, f"{rate(tally.tokens_per_second)} tok/s", counted(len(tally.tokens), "token")]
    if s.tested:
        parts += [f"τ {rate(s.mean_emitted_length)}", accepted_share(s)]
    return parts


def texts(
    comparison: Comparison, gap: float | None, *, greedy: bool, same_prompt: bool = True
) -> tuple[str, bool | None]:
    """Whether both lanes said the same, as a sentence, and as a truth; None where that is not the question."""
    if not comparison.same_target:
        return "not compared: the lanes have different targets", None
    if not same_prompt:
        return NOT_THE_SAME_PROMPT, None
    if comparison.identical:
        return f"✓ identical, token for token ({counted(len(comparison.left.tokens), 'token')})", True
    place = (comparison.difference or 0) + 1
    if not greedy:
        return f"sampled with the same seed: they part at token {place}, the distributions are equal", None
    close = "" if gap is None else f"; the target's two likeliest tokens differ by {gap:.3f} logits there"
    return f"✗ they part at token {place}{close}", False


def server_texts(said: Sequence[Reply | None], *, greedy: bool, same_prompt: bool) -> tuple[str, bool | None]:
    """`texts` for a right lane that is a server: compares characters, without a verdict where they differ.

    A server's model need not be the one here, whatever its name.
    """
    complete = [reply is not None and reply.reason not in BROKEN_OFF for reply in said]
    if not all(complete):
        return "not compared: a reply is not complete", None
    if not same_prompt:
        return NOT_THE_SAME_PROMPT, None
    if not greedy:
        return "not compared: the texts are sampled", None
    left, right = (reply.thinking + reply.text for reply in said if reply is not None)
    place = first_difference(left, right)
    if place is None:
        return f"✓ identical, character for character ({len(left)}); {TEXTS_ONLY}", True
    return f"they part at character {place + 1}; {TEXTS_ONLY}", None


def verdict(comparison: Comparison, *, comparable: bool) -> str:
    """The most telling figures in a few words."""
    same = "" if not comparable else " · identical" if comparison.identical else " · texts differ"
    return f"{times(comparison.measured)} measured{same}"


def timing(comparison: Comparison, labels: tuple[str, ...], *, observed: bool = False) -> list[Pair]:
    """Time and speed of both lanes; the right one may be `observed`, a server."""
    left, right = comparison.left, comparison.right
    return [
        ("", f"{labels[0][:12]:<12}  {labels[1][:15]}"),
        *([("clock", f"{'its own':<12}  {BY_STREAM}")] if observed else []),
        ("time", f"{seconds(left.seconds):<12}  {seconds(right.seconds)}"),
        ("tok/s", f"{rate(left.tokens_per_second):<12}  {rate(right.tokens_per_second)}"),
        ("passes", f"{left.passes:<12}  {right.passes or NOTHING}"),
    ]


def server_gains(comparison: Comparison) -> list[Pair]:
    """How fast the server was; what its drafts cost it, and what they should be worth, cannot be known here."""
    return [
        ("measured", f"{times(comparison.measured)} speedup at the server, {BY_STREAM}"),
        ("", f"{times(comparison.measured_in_all)} reading included"),
        ("predicted", f"{NOTHING} nothing is predicted for a server"),
    ]


def gains(comparison: Comparison) -> list[Pair]:
    """What the right lane's drafts were worth, and what they cost."""
    lane = comparison.right if comparison.right.drafts or not comparison.left.drafts else comparison.left
    saved, passes = lane.passes_saved, lane.passes + lane.passes_saved
    theory = "" if lane.predicted_work is None else f", {times(lane.predicted_work)} by Theorem 3.11"
    return [
        ("measured", f"{times(comparison.measured)} speedup, {times(comparison.measured_in_all)} reading included"),
        ("predicted", f"{times(comparison.predicted)} by Theorem 3.8 (even acceptance, equal passes, no overhead)"),
        ("saved", f"{saved} of {passes} target passes ({percent(saved / passes)})" if passes else NOTHING),
        ("work", f"{times(lane.work)} per token{theory}"),
    ]


def spread(runs: Sequence[float]) -> list[Pair]:
    """How far the measured speedup spreads over several runs of one prompt."""
    if len(runs) < 2:
        return []
    return [("runs", f"{len(runs)}: {times(min(runs))} … {times(max(runs))}, median {times(median(runs))}")]


def exactness(readies: tuple[LaneReady, ...]) -> str:
    """What exact mode gives here and costs; empty where it is off."""
    if not readies or readies[0].exact is None:
        return ""
    if not all(lane.exact for lane in readies if lane.exact is not None):  # a server's passes are not known
        return "exact mode cannot be given on this device: texts may differ where two tokens are close"
    return f"exact: a fixed-shape pass costs {readies[0].exact_cost or 0:.2f} of a pass over one token"


def order_text(order: Order, *, observed: bool = False) -> str:
    """How the lanes share the device, in a few words; the right one may be `observed`, a server."""
    if observed:
        return f"the server is asked when the left lane has ended · {BY_STREAM}"
    if order is Order.SEQUENTIAL:
        return "one after the other · each clock counts its own lane only"
    return "the lane with less time runs next · each clock counts its own lane only"


HINT = "with --exact no token depends on the rest of the batch, so rounding cannot change the texts"


class SideSummary(Static):
    """Two groups of figures, side by side on a wide screen."""

    COMPONENT_CLASSES = {"side-summary--label", "side-summary--same", "side-summary--differ"}  # noqa: RUF012
    TWO_GROUPS = 84
    """Minimum width in cells for two groups side by side."""

    def show(self, duet: Duet) -> None:
        """The figures of the last replies."""
        comparison = duet.comparison
        observed = duet.server is not None
        first = timing(comparison, duet.labels, observed=observed)
        second = [*(server_gains if observed else gains)(comparison), *spread(duet.runs)]
        table = Table.grid(padding=(0, 3))
        if self.app.size.width - 6 >= self.TWO_GROUPS:
            table.add_row(self._group(first), self._group(second))
        else:
            table.add_row(self._group([*first, *second]))
        greedy, same_prompt = duet.greedy, duet.same_prompt
        if observed:
            sentence, same = server_texts([lane.reply for lane in duet.lanes], greedy=greedy, same_prompt=same_prompt)
        else:
            sentence, same = texts(comparison, duet.gap, greedy=greedy, same_prompt=same_prompt)
        style = "label" if same is None else "same" if same else "differ"
        whole = Table.grid()
        whole.add_row(table)
        whole.add_row(Text.assemble(("texts".ljust(11), self._style("label")), (sentence, self._style(style))))
        note = exactness(duet.readies()) or ("" if same is not False else HINT)
        if note:
            whole.add_row(Text(note, self._style("label")))
        self.update(whole)

    def explain(self, duet: Duet) -> None:
        """Before the first prompt: how the clocks count."""
        clocks = CLOCKS if duet.server is None else OWN_STREAM.format(duet.server)
        note = exactness(duet.readies())
        self.update(Text(f"{clocks}\n{note}" if note else clocks, self._style("label")))

    def _group(self, rows: list[Pair]) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(style=self._style("label"), width=9, no_wrap=True)
        table.add_column()
        for row in rows:
            table.add_row(*row)
        return table

    def _style(self, part: str) -> Style:
        return self.get_component_rich_style(f"side-summary--{part}", partial=True)


class LaneColumn(Vertical):
    """The left or the right lane of a duet."""

    def __init__(self, duet: Duet, side: int, **options: Any) -> None:
        super().__init__(**options)
        self._duet, self._side = duet, side
        self._shown: list[str] | None = None
        self.transcript = Transcript(duet.conversations[side])
        self.transcript.forkable = False
        self._title = Static("", classes="lane-title")
        self._line = Static("", classes="lane-line")

    def compose(self) -> ComposeResult:
        """Top to bottom."""
        yield self._title
        yield self.transcript
        yield self._line

    def show_set_up(self) -> None:
        """The known part of the setup."""
        clock = f" · {BY_STREAM}" if self._duet.observes(self._side) else ""
        target = "" if self._duet.same_target else f"  {self._duet.targets[self._side]}"
        side, label = SIDES[self._side], self._duet.labels[self._side]
        self._title.update(Content.assemble((f"{side} ", "$quiet"), (label, "bold"), clock, target))

    on_mount = show_set_up

    def update(self) -> None:
        """Draw what has changed in the lane since the last call."""
        lane = self._duet.lanes[self._side]
        reply = lane.reply
        if reply is not None:
            reply.take_figures()
        self.transcript.update()
        parts = status(reply, lane.tally, self._side == 1 and self._duet.order is Order.SEQUENTIAL)
        if parts != self._shown:
            self._shown = parts
            room = max(self.size.width - 4, 12)
            while len(parts) > 1 and len(" · ".join(parts)) > room:
                parts = parts[:-1]
            self._line.update(Content.assemble((parts[0], "bold"), *(f" · {part}" for part in parts[1:])))
