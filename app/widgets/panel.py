"""The speculation panel: what the drafts were worth, how fast it went, and on what."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container
from textual.widget import Widget

from app.reply import Reply
from app.widgets.figures import NOTHING, duration, meter, percent, rate, size, sparkline
from engine import Ready, Statistics

LABEL = 13
POSITIONS = 8
"""Bars beyond this draft position are left out."""


class Card(Widget):
    """One group of figures in a frame."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "card--figure", "card--label", "card--full", "card--empty", "card--spark",
    }  # fmt: skip
    ALLOW_SELECT = False

    def __init__(self, title: str, **options: Any) -> None:
        super().__init__(**options)
        self.border_title = title
        self.reply = Reply()
        self.ready: Ready | None = None
        self._shown: list[Text] = []

    def rows(self) -> list[Text]:
        """The lines, as the figures now are."""
        raise NotImplementedError

    def show(self, reply: Reply) -> None:
        """Draw again what has changed; only a new number of lines moves what is below."""
        self.reply = reply
        before, self._shown = self._shown, self.rows()
        if self._shown != before:
            self.refresh(layout=len(self._shown) != len(before))

    def render(self) -> Text:
        """The lines at the present width."""
        return Text("\n", no_wrap=True, overflow="crop").join(self.rows())

    @property
    def _statistics(self) -> Statistics:
        return self.reply.statistics

    @property
    def _inner(self) -> int:
        return max(self.content_size.width, 12)

    def _style(self, part: str) -> Style:
        return self.get_component_rich_style(f"card--{part}", partial=True)

    def _figure(self, value: str, unit: str) -> Text:
        return Text.assemble((value, self._style("figure")), " ", (unit, self._style("label")))

    def _row(self, label: str, value: str) -> Text:
        room = self._inner - LABEL
        cut = value if len(value) <= room else value[: room - 1] + "…"
        return Text.assemble((label.ljust(LABEL), self._style("label")), cut)

    def _meter(self, share: float | None, width: int) -> Text:
        full, empty = meter(share, width)
        return Text.assemble((full, self._style("full")), (empty, self._style("empty")))


class Acceptance(Card):
    """Accepted / tested, in all and by draft position, and τ."""

    def rows(self) -> list[Text]:
        """The figures of the reply."""
        s = self._statistics
        counts = f"{s.accepted} accepted of {s.tested} tested"
        lines = [
            self._figure(percent(s.acceptance), "accepted / tested"),
            self._meter(s.acceptance, self._inner),
            Text(counts, self._style("label")),
            Text(),
            self._figure(f"τ {rate(s.mean_emitted_length)}", "tokens per target pass"),
            Text(f"{s.emitted} tokens in {s.rounds} rounds", self._style("label")),
            Text(),
            Text("by draft position".ljust(self._inner - 6) + "tested", self._style("label")),
        ]
        for number, share in enumerate(s.per_position[:POSITIONS], start=1):
            tested = f"{percent(share):>5} {s.position_tested[number - 1]:>5}"
            bar = self._meter(share, self._inner - 2 - len(tested) - 1)
            lines.append(Text.assemble((f"{number} ", self._style("label")), bar, " ", tested))
        if not s.per_position:
            lines.append(Text(NOTHING, self._style("empty")))
        return lines


class Speed(Card):
    """Tokens per second, now and over the reply, and the wait for the first token."""

    def rows(self) -> list[Text]:
        """The figures of the reply."""
        s = self._statistics
        over = f"{rate(s.tokens_per_second)} tok/s" if s.rounds else NOTHING
        return [
            self._figure(rate(s.recent_tokens_per_second), "tok/s now"),
            Text(sparkline(self.reply.speeds, self._inner) or " ", self._style("spark")),
            self._row("reply", over),
            self._row("first token", duration(s.time_to_first_token_s)),
        ]


class SetUp(Card):
    """The models, the machine, the prompt."""

    def rows(self) -> list[Text]:
        """The set-up of the reply."""
        s, ready = self._statistics, self.ready
        length = "auto" if self.reply.gamma is None else self.reply.gamma
        gamma = f"{self.reply.drafter} · γ {length}" if self.reply.drafter != "none" else "none"
        prompt = f"{s.prompt_tokens} tok, {s.reused_tokens} reused" if s.prompt_tokens else NOTHING
        rows = [self._row("drafter", gamma or NOTHING)]
        if ready is None:
            rows.append(self._row("target", NOTHING))
        else:
            rows += [
                self._row("target", ready.target),
                *([self._row("draft", ready.draft)] if ready.draft else []),
                self._row("device", f"{ready.device_name or ready.device}"),
                self._row("numbers", ready.dtype),
                self._row("weights", size(ready.weight_bytes)),
                self._row("cache", f"{size(ready.cache_bytes)} · {ready.slots}×{ready.context}"),
            ]
        rows.append(self._row("prompt", prompt))
        return rows


class Panel(Container):
    """All cards; a column on a wide screen, a page on a narrow one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._cards: tuple[Card, ...] = (
            Acceptance("acceptance", id="acceptance"),
            Speed("speed", id="speed"),
            SetUp("set-up", id="set-up"),
        )

    def compose(self) -> ComposeResult:
        """The cards, most telling first."""
        yield from self._cards

    def show(self, reply: Reply) -> None:
        """Show the figures of this reply; called again when they have changed."""
        for card in self._cards:
            card.show(reply)

    def show_machine(self, ready: Ready) -> None:
        """Show what was loaded, and where."""
        for card in self._cards:
            card.ready = ready
            card.refresh(layout=True)
