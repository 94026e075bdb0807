"""The speculation panel: cards for speedup and speed, for acceptance, and for the setup, which folds."""

from pathlib import Path
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container
from textual.events import Click
from textual.renderables.digits import Digits

from specchat.app.chat.reply import Reply
from specchat.app.settings.controls import gamma_limit
from specchat.app.sources.observed import OBSERVED
from specchat.app.ui.rendering.figures import (
    LOSSES,
    NOTHING,
    UNSURE,
    cut,
    duration,
    emitted,
    graphs,
    losses,
    measured,
    one_line,
    percent,
    rate,
    reading,
    sparkline,
    times,
    what_became_of_drafts,
)
from specchat.app.ui.widgets.card import LABEL, NONE, ReplyCard
from specchat.engine import Captured, Ready, Speedup, size_text

POSITIONS = 6
"""Bars beyond this draft position are left out."""
SURE = 20
"""Rounds before a speedup is called one, or none."""
SLOWER = 0.97
"""A measured speedup below this, and below 1 by more than its error, is worth a warning."""
SAID, DRAFTS, LARGE, GAIN = 2, 2, 3, 5
"""Lines reserved for the fates of drafted tokens, for several drafts, for the headline, and for what explains it."""
LOSS = max(map(len, LOSSES)) + 1
"""Column of the figures that explain the speedup."""
WARNING = "▲ slower than no drafts would be"
SEVERAL = ("combined", "merged")
"""The drafters that combine several drafts."""


class AcceptanceCard(ReplyCard):
    """Accepted / tested, in all and by draft position, τ, α and γ."""

    def rows(self) -> list[Text]:
        """The figures of the reply."""
        s, drafts = self.metrics, self._by_draft()
        most = POSITIONS - 2 * bool(drafts) - len(drafts[1:])  # so that all cards of a chat as it comes fit 40 lines
        lines = [
            self.headline(percent(s.acceptance), "accepted / tested"),
            self.meter(s.acceptance, self.inner),
            *self._padded(self.sentence(what_became_of_drafts(s)), SAID),
            *self._by_place(),
            *drafts,
            self.headline(rate(s.mean_emitted_length), "tokens per round · τ"),
            Text(emitted(s), self.style("label")),
            *([] if drafts else [Text()]),
        ]
        found = len(s.per_position)
        heading = "by draft position" + (f" 1–{most} of {found}" if found > most else "")
        lines.append(Text(heading.ljust(self.inner - 6) + "tested", self.style("label")))
        for number in range(min(max(found, self._positions()), most)):
            known = number < len(s.per_position)
            share, count = (s.per_position[number], s.position_tested[number]) if known else (None, 0)
            tested = f"{percent(share):>5} {count:>5}"
            bar = self.meter(share, self.inner - 2 - len(tested) - 1)
            lines.append(Text.assemble(self.label(f"{number + 1} "), bar, " ", tested))
        if not self._positions() and not s.per_position:
            lines.append(Text(NOTHING, self.style("empty")))
        asked = [] if s.unknown else [float(gamma) for gamma in self.reply.figures.gammas]
        latest = f"{asked[-1]:>3.0f} " if asked else f"{NOTHING:>3} "
        spark = sparkline(asked, self.inner - 6)
        lines.append(Text.assemble(self.label("γ"), latest, " ", (spark, self.style("draft"))))
        return lines

    def _positions(self) -> int:
        """Positions that a draft may have."""
        if not self.drafting:
            return 0
        return min(int(self.reply.gamma), POSITIONS) if self.reply.gamma.isdecimal() else POSITIONS

    def _by_place(self) -> list[Text]:
        """Acceptance inside and outside of thinking."""
        thought = self.reply.figures.thought
        if thought is None:
            return []
        places = zip(("thinking", "answer"), thought.accepted, thought.tested, strict=True)
        return [self.row(place, f"{percent(a / t if t else None)} of {t}") for place, a, t in places]

    def _by_draft(self) -> list[Text]:
        """Acceptance per draft, for drafters that combine several."""
        counts = self.metrics.by_draft
        if len(counts) < 2:
            return self._padded([], DRAFTS if self.drafter in SEVERAL else 0)
        names = [one_line(name) for name in counts]
        values = [f"{percent(had / of if of else None)} of {of}" for of, had in counts.values()]
        room = self.inner - 1 - max(map(cell_len, values))
        width = min(max(LABEL - 1, *map(cell_len, names)), room)
        cells = (set_cell_size(cut(name, width), width) for name in names)
        return [Text.assemble(self.label(cell), " ", value) for cell, value in zip(cells, values, strict=True)]


class Speed(ReplyCard):
    """The speedup: measured, as the headline, predicted, and the losses between them; and tokens per second."""

    def rows(self) -> list[Text]:
        """The figures of the reply."""
        s, figures = self.metrics, self.reply.figures
        now = None if self.held else s.recent_tokens_per_second
        over = rate(s.tokens_per_second if s.rounds else None)
        return [
            *self._padded(self._headline(figures.gain, running=figures.running), LARGE),
            *self._padded(self._gain(figures.gain, running=figures.running), GAIN),
            self.headline(rate(now), "tok/s now") if figures.running else self.headline(over, "tok/s"),
            Text(sparkline(figures.speeds, self.inner) or " ", self.style("spark")),
            *([self.row("reply", f"{over} tok/s")] if figures.running else []),
            self.row("first token", duration(s.time_to_first_token_s)),
        ]

    def update(self) -> None:
        """Draw again what has changed; a warning is drawn in the frame, where it moves nothing."""
        super().update()
        slower = self._is_slower(self.reply.figures.gain)
        if slower != bool(self.border_subtitle):
            self.border_subtitle = WARNING if slower else ""

    def _headline(self, gain: Speedup | None, *, running: bool) -> list[Text]:
        """The measured speedup in large digits, with its standard error; in words until there is a number."""
        if self.metrics.observed:
            return []
        value, _, error = measured(gain, running=running).partition(" ± ")
        factor, style = value.removeprefix("about "), self.style("figure")
        if not factor.endswith("×"):
            return [self.row("measured", value)]
        lines = self.app.console.render_lines(Digits(factor.replace("×", "x"), style), pad=False)
        large = [Text("".join(segment.text for segment in line), style) for line in lines]
        beside = ("" if value == factor else "about"), (f"± {error}" if error else ""), "measured speedup"
        room = self.inner - large[0].cell_len - 2
        return [Text.assemble(row, "  ", self.label(cut(text, room))) for row, text in zip(large, beside, strict=True)]

    def _gain(self, gain: Speedup | None, *, running: bool) -> list[Text]:
        if self.metrics.observed:
            return self.sentence("observed: not available, the server reports no probabilities")
        alpha = self.metrics.alpha
        known = NOTHING if alpha is None else f"{alpha:.2f}"
        certain = gain is not None and gain.error < UNSURE
        predicted = "measuring …" if gain is None and running else times(gain.predicted if gain else None)
        return [
            self.row("predicted", predicted, "" if certain else "label", LOSS),
            *(self.row(label, text, "label", LOSS) for label, text in (losses(gain) if gain is not None else ())),
            self.row("α", f"{known}   c {NOTHING if gain is None else f'{gain.c:.3f}'}"),
        ]

    def _is_slower(self, gain: Speedup | None) -> bool:
        """Whether drafts made the reply slower by more than the error."""
        if gain is None or gain.error >= UNSURE or self.metrics.observed or self.reply.figures.counted_rounds < SURE:
            return False
        return gain.measured * (1 + gain.error) < 1 and gain.measured < SLOWER


class SetUpCard(ReplyCard):
    """The models, the machine, the prompt, and what the interface costs. Folded to its title once there is a reply."""

    folded = True

    def collapse(self) -> None:
        """Take no room while no model is loaded."""
        self.display = self.present or self.ready is not None

    loaded = ""
    """The loaded model, as replies name theirs."""
    captured: Captured | None = None
    """The CUDA graphs, if some were captured after the start."""
    gpu = ""
    interface: float | None = None

    def update(self) -> None:
        """Draw again what has changed; the title says whether there is more."""
        folded = self.folded and self.present
        self.set_class(folded, "-folded")
        self.border_title = f"{'▸' if folded else '▾'} setup" if self.present else "setup"
        super().update()

    async def on_click(self, event: Click) -> None:
        """Fold or unfold."""
        event.stop()
        await self.run_action("app.run('setup')")

    def rows(self) -> list[Text]:
        """The setup of the reply; the style sheet hides it where it is folded."""
        ready = self.ready
        asked = self.reply.gamma if self.reply.drafter not in ("", NONE, OBSERVED) else ""
        drafting = f"{self.reply.drafter} · {gamma_limit(asked)}" if asked else self.reply.drafter
        rows = [self.row("drafter", drafting or NOTHING)]
        rows += [self.row(*each) for each in reading(self.reply) if self.present]
        if self.reply.model not in ("", self.loaded):
            rows.append(self.row("target", Path(self.reply.model).name))
            rows += self.sentence(f"loaded now: {ready.target}") if ready else []
        elif ready is None:
            rows.append(self.row("target", NOTHING))
        else:
            rows += [
                self.row("target", ready.target),
                *([self.row("draft model", ready.draft)] if ready.draft else []),
                *self._machine(ready),
                *([self.row("GPU", self.gpu)] if self.gpu else []),
            ]
        if self.interface is not None:
            rows.append(self.row("interface", f"{percent(self.interface)} of a core"))
        return rows

    def _machine(self, ready: Ready) -> list[Text]:
        if ready.observed:
            return [self.row("server", ready.observed)]
        shorter = ready.context < ready.model_context
        kept = f"up to {size_text(ready.slot_bytes)} per chat, {size_text(ready.kept_bytes)} in all"
        return [
            self.row("device", f"{ready.device_name or ready.device} · {ready.dtype}"),
            *self.wrapped("memory", f"models {size_text(ready.weight_bytes)}, cache {size_text(ready.cache_bytes)}"),
            *([self.row("graphs", graphs(self.captured or ready))] if ready.graphs else []),
            *([self.row("graphs left", str(self.captured.left))] if self.captured and self.captured.left else []),
            *([self.row("context", f"{ready.context:,} of {ready.model_context:,}")] if shorter else []),
            *(self.wrapped("prefix cache", kept) if ready.kept_bytes else []),
            *(self.wrapped("drafts", "chains: the state of the model has no branches") if ready.state_bytes else []),
        ]


class Panel(Container):
    """All cards; a column on a wide screen, a page on a narrow one. A click explains the figures."""

    def __init__(self, **options: Any) -> None:
        super().__init__(classes="-empty", **options)
        self._setup = SetUpCard("setup", id="setup")
        speed, acceptance = Speed("speedup", id="speed"), AcceptanceCard("acceptance", id="acceptance")
        self._cards: tuple[ReplyCard, ...] = (speed, acceptance, self._setup)

    def compose(self) -> ComposeResult:
        """The cards, most telling first."""
        yield from self._cards

    def show(self, reply: Reply, *, held: bool = False) -> None:
        """Show the figures of this reply, whose rounds may be held back; called again when they have changed."""
        for card in self._cards:
            card.show(reply, held=held)
            card.collapse()
        self.set_class(not self._setup.present, "-empty")

    def fold_setup(self) -> None:
        """Fold the setup, or show it."""
        self._setup.folded = not self._setup.folded
        self._setup.update()

    def show_machine(self, ready: Ready | None, model: str) -> None:
        """Show what is loaded, if anything, and where; `model` is the model as replies name it."""
        self._setup.loaded, self._setup.captured = model, None
        for card in self._cards:
            card.ready = ready
            card.collapse()
        self._setup.update()

    def show_captured(self, captured: Captured) -> None:
        """Show how many CUDA graphs there are by now."""
        self._setup.captured = captured
        self._setup.update()

    def show_load(self, gpu: str, interface: float | None) -> None:
        """Show the load of the GPU (empty without one), and the interface's share of one core."""
        self._setup.gpu, self._setup.interface = gpu, interface
        self._setup.update()

    async def on_click(self, event: Click) -> None:
        """Open the definitions."""
        event.stop()
        await self.run_action("app.run('figures')")
