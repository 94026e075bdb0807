"""Cards with everything that is recorded about one token: its fate and the reason, p and q, its round."""

from pathlib import Path
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container
from textual.events import Resize

from specchat.app.chat.reply import Reply
from specchat.app.settings.controls import sampling_text
from specchat.app.sources.observed import drawn_text
from specchat.app.ui.rendering import verdict
from specchat.app.ui.rendering.figures import cut, duration, reading
from specchat.app.ui.rendering.styles import TOKEN_CLASSES
from specchat.app.ui.rendering.token_cursor import Spot
from specchat.app.ui.widgets.card import Card
from specchat.engine import Candidate, Detail, Fate, Round, Token

SLIM = 66
"""Cells that two cards need side by side."""
AFTERWARDS = "computed afterwards, not recorded"
NUMBER = 5
"""Cells of a probability, a space before it included."""


class SpotCard(Card):
    """A card about the selected token."""

    spot: Spot | None = None

    def show(self, spot: Spot | None) -> None:
        """Show this token."""
        self.spot = spot
        self.update()

    def rows(self) -> list[Text]:
        """The lines about the selected token."""
        if self.spot is None:
            return [Text("no token yet", self.style("label"))]
        reply = self.spot.reply
        record, token = reply.token(self.spot.token)
        return self.about(reply, record, token)

    def about(self, reply: Reply, record: Round, token: Token) -> list[Text]:
        """The lines about a token."""
        raise NotImplementedError


class VerdictCard(SpotCard):
    """The token, its fate, and why."""

    COMPONENT_CLASSES = Card.COMPONENT_CLASSES | TOKEN_CLASSES

    def about(self, reply: Reply, record: Round, token: Token) -> list[Text]:
        """The fate and its reason; the random draw on a line from 0 to 1, accepted left of min(1, p/q)."""
        fate = self.get_component_rich_style(f"token--{token.fate.value}", partial=True)
        identity = "" if record.observed else f"id {token.id}"
        name = cut(verdict.shown(drawn_text(record, token)), self.inner - len(identity) - 5)
        gap = " " * max(self.inner - cell_len(name) - len(identity) - 2, 1)
        lines = [
            Text.assemble(self.label("“"), (name, fate), self.label("”"), gap, self.label(identity)),
            Text(token.fate.value, fate),
            *self.sentence(verdict.fate_verdict(record, token)),
        ]
        if token.place < record.tested and not record.observed:
            p, q, u = (values[token.place] for values in (record.p, record.q, record.u))
            chance = verdict.chance_of(p, q)
            choice = self.label("   greedy choice") if verdict.is_greedy(reply) else ""
            lines += [
                Text(),
                Text.assemble(self.label("p "), verdict.number(p), self.label("   q "), verdict.number(q), choice),
                Text.assemble(
                    self.label("min(1, p/q) "), verdict.number(chance), self.label("   u "), verdict.number(u)
                ),
                self._draw(chance, u),
            ]
        return [*lines, *self._rejected_candidates(record, token)]

    def _rejected_candidates(self, record: Round, token: Token) -> list[Text]:
        """The rejected candidates for this position, each with its draw."""
        if not record.refused or token.place >= record.tested or not record.refused[token.place]:
            return []
        when = "rejected before it" if token.fate is Fate.ACCEPTED else "rejected after it"
        lines = [Text(), Text.assemble(self.label(when))]
        for other in record.refused[token.place]:
            draw = f"u {verdict.number(other.u, 2)} ≥ {verdict.number(verdict.chance_of(other.p, other.q), 2)}"
            name = cut(verdict.shown(other.text), self.inner - len(draw) - 3)
            gap = " " * max(self.inner - cell_len(name) - len(draw) - 2, 1)
            style = self.get_component_rich_style(f"token--{Fate.REJECTED.value}", partial=True)
            lines.append(Text.assemble(self.label("“"), (name, style), self.label("”"), gap, self.label(draw)))
        return lines

    def _draw(self, chance: float, u: float) -> Text:
        room = self.inner - 4
        line = Text.assemble(self.label("0 "), self.meter(chance, room), self.label(" 1"))
        place = 2 + min(int(u * room), room - 1)
        return Text.assemble(line[:place], ("◆", self.style("figure")), line[place + 1 :])


class ChancesCard(SpotCard):
    """Target and draft side by side, the most likely tokens first; and the residual where one was drawn from."""

    def __init__(self, title: str, *, replaying: bool, **options: Any) -> None:
        super().__init__(title, **options)
        self._replaying = replaying

    def about(self, reply: Reply, record: Round, token: Token) -> list[Text]:
        """The lists, or why there are none."""
        detail = verdict.detail_of(record, token)
        computed = None if self.spot is None else reply.computed.get(self.spot.token)
        lines = []
        if detail is None and computed is not None:
            lines = self.sentence(computed.note)
            detail = computed.detail
            if detail is not None:
                lines = self.sentence(" ".join(filter(None, (AFTERWARDS, computed.note))))
        if detail is None:
            return lines or self.sentence(verdict.why_missing(reply, token, replaying=self._replaying))
        both = bool(detail.draft)
        width = (self.inner - 1) // 3
        bar = (self.inner - width - 2 * NUMBER - 2) // 2 if both else self.inner - width - NUMBER - 1
        if detail.target and detail.target[0].probability < 1 and verdict.is_greedy(reply):
            lines += self.sentence("before the greedy choice, which then gives the likeliest token p 1, all others 0:")
        lines.append(self._heads(detail, width + 1, bar + NUMBER + 1))
        for candidate in verdict.listed_together(detail):
            mark = "▸" if candidate.id == token.id else " "
            line = Text.assemble(mark, self._named(candidate, width - 1), " ")
            line.append_text(self._bar(verdict.probability_of(candidate.id, detail.target), bar, "target"))
            if both:
                q = verdict.probability_of(candidate.id, detail.draft)
                line.append(" ").append_text(self._bar(q, bar, "draft"))
            lines.append(line)
        residual = verdict.residual_of(record, token) if record.detail else detail.residual
        if residual:
            lines += [Text(), Text.assemble(("residual", self.style("figure")), self.label(" norm(max(0, p − q))"))]
            room = self.inner - width - NUMBER - 1
            for candidate in residual[: verdict.TOP // 2]:
                mark = "▸" if candidate.id == record.last else " "
                name = self._named(candidate, width - 1)
                lines.append(Text.assemble(mark, name, " ", self._bar(candidate.probability, room, "residual")))
        return lines

    def _heads(self, detail: Detail, indent: int, width: int) -> Text:
        heads = Text.assemble(" " * indent, (f"p  H {detail.target_entropy:.2f}".ljust(width), self.style("target")))
        if detail.draft:
            heads.append(f"q  H {detail.draft_entropy:.2f}", self.style("draft"))
        return heads

    def _named(self, candidate: Candidate, width: int) -> str:
        return set_cell_size(cut(verdict.shown(candidate.text), width), width)

    def _bar(self, probability: float | None, width: int, part: str) -> Text:
        if probability is None:  # not among the top-k of this side
            return Text("·".rjust(width + NUMBER), self.style("label"))
        return Text.assemble(self.meter(probability, width, part), verdict.number(probability, 2).rjust(NUMBER))


class PlaceCard(SpotCard):
    """Round, position, times."""

    def about(self, reply: Reply, record: Round, token: Token) -> list[Text]:
        """Position of the token, and times of its round."""
        drafted = len(record.drafted)
        place = f"{token.place + 1} of {drafted} drafted" if token.place < drafted else f"after {drafted} drafted"
        emitted = token.place <= record.accepted and token.fate not in (Fate.REJECTED, Fate.DISCARDED)
        position = record.position + min(token.place, record.accepted)
        began = reply.rounds[0].at - reply.rounds[0].seconds
        rows = [
            self.row("round", f"{reply.rounds.index(record) + 1} · {place}"),
            self.row("position", f"{position}" if emitted or token.fate is Fate.CORRECTION else f"would be {position}"),
            self.row("drafter", f"{record.drafter} · γ {record.steps}"),
            *([self.row("model", Path(reply.model).name)] if reply.model else []),
            *([self.row("sampling", sampling_text(reply.sampling))] if reply.sampling is not None else []),
            *(self.row("proposed by", name) for name in record.proposed_by(token)),
        ]
        if token.place < record.tested and not record.observed:
            rows.append(self.row("β", verdict.number(record.beta[token.place])))
        return [
            *rows,
            self.row("draft", duration(record.draft_s)),
            self.row("verify", duration(record.verify_s)),
            self.row("rest", f"{duration(record.rest_s)} · batch of {record.rows}"),
            self.row("round ended", f"{duration(record.at - began)} into the reply"),
            *(self.row(*each) for each in reading(reply) if reply.figures.metrics.reused_tokens),
        ]


class Inspector(Container):
    """The cards of one token; a column on a wide screen, side by side on a narrow one."""

    def __init__(self, *, replaying: bool, **options: Any) -> None:
        super().__init__(**options)
        self._cards: tuple[SpotCard, ...] = (
            VerdictCard("token", id="verdict"),
            ChancesCard("target p and draft q", replaying=replaying, id="chances"),
            PlaceCard("round", id="place"),
        )

    def compose(self) -> ComposeResult:
        """The cards."""
        yield from self._cards

    def on_resize(self, event: Resize) -> None:
        """Put the cards below each other where two of them do not fit side by side."""
        self.set_class(event.size.width < SLIM, "-slim")

    def show(self, spot: Spot | None) -> None:
        """Show this token, or that there is none."""
        for card in self._cards:
            card.show(spot)
