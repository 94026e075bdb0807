"""What the paper predicts, as plots: for the reply on screen with measured points, and as in the paper's figures.

Leviathan et al. 2023: equation 1 and Figure 2 (tokens), Theorem 3.8 (speedup), section 3.5 and Figure 3 (the best γ),
Theorem 3.11, Figure 4 and Table 1 (operations).
"""

from collections.abc import Sequence
from itertools import cycle
from math import ceil, floor
from statistics import fmean

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.color import Color
from textual.containers import Container, Horizontal
from textual.widgets import Static, TabbedContent, TabPane
from textual_plotext import PlotextPlot

from specchat.app.chat.reply import Reply
from specchat.app.ui.rendering.figures import losses, measured, rate, times
from specchat.app.ui.screens.dialogs import Dialog, framed
from specchat.app.ui.screens.help import THEORY_KEYS
from specchat.engine import MAX_GAMMA, expected_tokens, operations, optimal_gamma, speedup

EXAMPLE = 0.8, 0.05
"""α and c of the curves before anything is measured."""
_ALPHAS = [step / 50 for step in range(50)]
_GAMMAS = list(range(MAX_GAMMA + 1))
_FAR = 64
"""Maximum γ in Figure 3."""
_TABLE_1 = (0.6, 2), (0.7, 3), (0.8, 2), (0.8, 5), (0.9, 2), (0.9, 10)
"""α and γ of the rows of Table 1."""
_LIVE_S = 1.0
_TICKS = 9
_CURVES = ("fate-accepted", "fate-bonus", "fate-correction", "fate-rejected", "primary", "fate-plain")
"""Colours of curves, by the names of the theme's variables."""


class TheoryScreen(Dialog[None]):
    """The theory, with the measured α and c of a reply.

    Args:
        reply: the reply; of one without drafts, an example is shown.
    """

    HORIZONTAL_BREAKPOINTS = [(0, "-column"), (110, "-columns")]  # noqa: RUF012
    BINDINGS = THEORY_KEYS

    def __init__(self, reply: Reply) -> None:
        super().__init__()
        self._reply = reply

    def compose(self) -> ComposeResult:
        """One page for the reply, one for each figure of the paper."""
        with framed(Container(id="theory"), "theory", "← → pages · esc closes"), TabbedContent():
            with TabPane("this reply", id="theory-now"):
                with Horizontal():
                    yield PlotextPlot(id="theory-tokens")
                    yield PlotextPlot(id="theory-speedup")
                yield Static(id="theory-caption")
            for number in (2, 3, 4):
                with TabPane(f"figure {number}", id=f"theory-{number}"):
                    yield PlotextPlot(id=f"theory-figure-{number}")
            with TabPane("table 1", id="theory-table"):
                yield Static(_table_1(), id="theory-rows")

    def on_mount(self) -> None:
        """Draw everything; the reply again while it runs."""
        self._draw()
        self.set_interval(_LIVE_S, lambda: self._draw_reply() if self._reply.running else None)

    def notify_style_update(self) -> None:
        """Another theme."""
        super().notify_style_update()
        if self.is_mounted:
            self._draw()

    def _draw(self) -> None:
        self._draw_reply()
        curves = [(f"γ {gamma}", _ALPHAS, [expected_tokens(a, gamma) for a in _ALPHAS]) for gamma in (1, 3, 5, 7, 10)]
        self._plot("theory-figure-2", "Figure 2: tokens per pass, by α", curves, counted=True)
        shown = [alpha for alpha in _ALPHAS if 0.2 <= alpha <= 0.94]
        curves = [
            (f"c {c:g}", shown, [float(optimal_gamma(a, c, _FAR)) for a in shown]) for c in (0.01, 0.02, 0.05, 0.1)
        ]
        self._plot("theory-figure-3", "Figure 3: the best γ, by α", curves, counted=True)
        curves = []
        for gamma in (3, 5, 10):
            curves.append((f"speedup, γ {gamma}", _ALPHAS, [speedup(a, gamma, 0.0) for a in _ALPHAS]))
            shown = [alpha for alpha in _ALPHAS if operations(alpha, gamma) <= gamma + 1]
            curves.append((f"operations, γ {gamma}", shown, [operations(a, gamma) for a in shown]))
        self._plot("theory-figure-4", "Figure 4: speedup and operations, by α (c = ĉ = 0)", curves)

    def _draw_reply(self) -> None:
        """Tokens and speedup against γ, with measured points and the best γ."""
        alpha, gain = self._reply.figures.metrics.alpha, self._reply.figures.gain
        a, c = EXAMPLE if alpha is None else (min(alpha, 1.0), EXAMPLE[1] if gain is None else gain.c)
        best = optimal_gamma(a, c, MAX_GAMMA)
        tokens = [("equation 1", _GAMMAS, [expected_tokens(a, gamma) for gamma in _GAMMAS])]
        means = _emitted_by_length(self._reply)
        self._plot("theory-tokens", "tokens per pass, by γ", tokens, points=means, counted=True)
        rounds = self._reply.own_rounds
        point = ([fmean(record.steps for record in rounds)], [gain.measured]) if gain is not None else ((), ())
        curve = [speedup(a, gamma, c) for gamma in _GAMMAS]
        self._plot("theory-speedup", "speedup, by γ", [("Theorem 3.8", _GAMMAS, curve)], points=point, mark=best)
        values = f"α {a:.2f} · c {c:.3f} · best γ {best}: {times(speedup(a, best, c))}"
        if alpha is None:
            text = f"{values}: an example, as nothing has been drafted yet"
        elif gain is None:
            yet = " yet" if self._reply.running else ""
            text = f"{values}, with an example's c, as this reply's is not measured{yet}"
        else:
            reasons = ", ".join(f"{label} {change}" for label, change in losses(gain))
            text = f"{values} · predicted for the draft lengths of the reply {times(gain.predicted)}; {reasons}: "
            text += f"measured {measured(gain, running=self._reply.running)}"
        self.query_one("#theory-caption", Static).update(Text(text))

    def _plot(
        self,
        name: str,
        title: str,
        curves: Sequence[tuple[str, Sequence[float], Sequence[float]]],
        points: tuple[Sequence[float], Sequence[float]] = ((), ()),
        mark: int | None = None,
        *,
        counted: bool = False,
    ) -> None:
        """Draw curves, measured points, and a line at the best γ; `counted` values have whole numbers as ticks."""
        widget = self.query_one(f"#{name}", PlotextPlot)
        variables = self.app.get_css_variables()
        plot = widget.plt
        colours = {name: Color.parse(variables[name]).rgb for name in (*_CURVES, "quiet", "warning")}
        plot.clear_data()
        plot.title(title)
        if mark:
            plot.vline(mark, colours["quiet"])
        for (label, x, y), colour in zip(curves, cycle(_CURVES), strict=False):
            plot.plot(list(x), list(y), label=label, marker="braille", color=colours[colour])
        if points[0]:
            plot.scatter(list(points[0]), list(points[1]), label="measured", marker="●", color=colours["warning"])
        if counted:
            values = [value for _, _, y in curves for value in y] + list(points[1])
            ticks = _whole_numbers(min(values), max(values))
            plot.yticks(ticks, [f"{tick:.0f}" for tick in ticks])
        widget.refresh()


def _whole_numbers(least: float, greatest: float) -> list[float]:
    """Ticks of an axis: whole numbers from `least` to `greatest`, evenly spaced, at most `_TICKS`."""
    step = ceil((floor(greatest) - ceil(least) + 1) / _TICKS) or 1
    return [float(number) for number in range(ceil(least), floor(greatest) + 1, step)]


def _emitted_by_length(reply: Reply) -> tuple[list[float], list[float]]:
    """Draft lengths of the rounds, and the mean number of tokens that rounds of each length emitted."""
    counts: dict[int, list[int]] = {}
    for record in reply.own_rounds:
        counts.setdefault(record.steps, []).append(len(record.emitted))
    lengths = sorted(counts)
    return [float(n) for n in lengths], [sum(counts[n]) / len(counts[n]) for n in lengths]


def _table_1() -> Table:
    table = Table(title="Table 1: operations and speed over plain decoding, for c = ĉ = 0", box=None, padding=(0, 3))
    for name in ("α", "γ", "operations", "speed"):
        table.add_column(name, justify="right")
    for alpha, gamma in _TABLE_1:
        table.add_row(rate(alpha), str(gamma), times(operations(alpha, gamma)), times(speedup(alpha, gamma, 0.0)))
    return table
