"""Two conversations that are asked the same: one prompt goes into both lanes, and the next when both have answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from app.archive import Archive
from app.conversation import Conversation
from app.errors import UsageError
from app.exchange import Exchange
from app.lane_source import Lane, LaneSource, TalliedSource
from app.reply import Reply
from app.session import Session
from app.set_up import label, lane_config, lanes, with_seed
from app.settings import Settings
from engine import Comparison, LaneEngine, LaneReady, LaneTally, Order, Record

SIDES = ("left", "right")


@dataclass(eq=False)
class LaneConversation(Conversation):
    """A conversation whose chat is named after its set-up."""

    set_up: str = ""

    @property
    def title(self) -> str:
        """The chat's own title, else the set-up and the first prompt."""
        title = super().title
        return title if (self.chat and self.chat.title) or not title else f"{self.set_up} · {title}"


class Duet:
    """Both lanes: what is sent to them, what they say, and how they compare.

    Args:
        pair: the settings of each lane.
        sources: where each lane's records come from.
        order: how the lanes share the device.
        readies: what is known of each lane once its models are loaded; empty before.
    """

    def __init__(
        self,
        pair: tuple[Settings, Settings],
        sources: tuple[Lane, Lane],
        order: Order,
        readies: Callable[[], tuple[LaneReady, ...]],
    ) -> None:
        self.order = order
        self.readies = readies
        self.greedy = all(settings.sampling().greedy for settings in pair)
        self.targets = tuple(settings.target for settings in pair)
        self.waiting: list[str] = []
        """Prompts that are sent when both lanes have answered."""
        self._pair = pair
        self.conversations = tuple(LaneConversation(set_up=text) for text in self.labels)
        self._lanes = sources
        self._sources = tuple(TalliedSource(sources[i], lambda i=i: self._share(i)) for i in (0, 1))  # type: ignore[misc]
        self._exchanges = (Exchange(), Exchange())
        self._asked_gap = False

    def connect(self, archive: Archive | None) -> None:
        """Start the engine; both conversations are stored in `archive`."""
        for exchange, source, settings in zip(self._exchanges, self._sources, self._pair, strict=True):
            exchange.connect(Session(source, settings), archive)

    def send(self, prompt: str) -> None:
        """Ask both lanes the same, now or when they have answered."""
        self.waiting.append(prompt)
        self._next()

    def stop(self) -> list[str]:
        """End both replies, keeping their texts, and take waiting prompts back."""
        taken, self.waiting = self.waiting, []
        before = [exchange.stop(c) for exchange, c in zip(self._exchanges, self.conversations, strict=True)]
        return [*before[0], *taken]

    def drain(self) -> Iterator[Record]:
        """Hand the records of both lanes to their replies; yields what concerns the whole engine."""
        for exchange in self._exchanges:
            yield from exchange.drain()
        self._next()
        if self.done and not self._asked_gap and self.comparable and not self.comparison.identical:
            self._asked_gap = True
            self._lanes[0].ask_gap(self.comparison)

    @property
    def labels(self) -> tuple[str, ...]:
        """The set-ups for people; the best drafter has a name once the models are loaded."""
        readies = self.readies()
        offered = [lane.ready.drafters for lane in readies] or [(), ()]
        return tuple(label(settings, names) for settings, names in zip(self._pair, offered, strict=True))

    def ready(self) -> None:
        """The models are loaded."""
        for conversation, text in zip(self.conversations, self.labels, strict=True):
            conversation.set_up = text
        for exchange in self._exchanges:
            exchange.ready()

    def fail(self, sentence: str) -> None:
        """There is nobody to ask, for this reason."""
        for exchange in self._exchanges:
            exchange.fail(sentence)

    def write(self) -> None:
        """Store what has come since the last call."""
        for exchange in self._exchanges:
            exchange.write()

    def end(self) -> None:
        """End the replies, store them, and close the engine."""
        for exchange in self._exchanges:
            exchange.end()

    @property
    def running(self) -> bool:
        """Whether a lane is still answering."""
        return any(conversation.running for conversation in self.conversations)

    @property
    def done(self) -> bool:
        """Whether both lanes have answered the last prompt."""
        replies = [self.reply(side) for side in (0, 1)]
        return all(reply is not None and not reply.running for reply in replies)

    def reply(self, side: int) -> Reply | None:
        """The last reply of a lane."""
        turns = self.conversations[side].turns
        return turns[-1].reply if turns else None

    def tally(self, side: int) -> LaneTally:
        """The figures of a lane's last reply."""
        return self._sources[side].tally

    @property
    def comparison(self) -> Comparison:
        """How the lanes' last replies compare."""
        return Comparison(self.tally(0), self.tally(1), self.same_target)

    @property
    def comparable(self) -> bool:
        """Whether the last texts have to be the same: one target, greedy in both lanes, that were asked the same."""
        return self.same_target and self.greedy and self.same_prompt

    @property
    def same_target(self) -> bool:
        """Whether both lanes have the same target."""
        return self.targets[0] == self.targets[1]

    @property
    def same_prompt(self) -> bool:
        """Whether both lanes were given the same conversation; not once their earlier texts differ."""
        left, right = (c.messages(c.turns[-1]) if c.turns else () for c in self.conversations)
        return left == right

    @property
    def gap(self) -> float | None:
        """How close the target's choice was where the texts part, in logits; None while it is not known."""
        return self._lanes[0].gap

    def _next(self) -> None:
        if self.waiting and not self.running and not self._lanes[0].asking:
            prompt = self.waiting.pop(0)
            self._asked_gap = False
            for exchange, conversation in zip(self._exchanges, self.conversations, strict=True):
                exchange.send(conversation, prompt)

    def _share(self, side: int) -> float:
        readies = self.readies()
        return readies[side].draft_share if readies else 0.0


@dataclass(frozen=True, slots=True)
class SideOptions:
    """What the command line says about the mode."""

    left: str | None = None
    right: str | None = None
    order: str = Order.INTERLEAVED.value
    exact: bool = False

    def pair(self, shared: Settings) -> tuple[Settings, Settings]:
        """The settings of both lanes.

        Raises:
            AppError: an option means nothing.
        """
        if self.order not in tuple(Order):
            raise UsageError(f"--order {self.order!r} is not known: choose {' or '.join(Order)}")
        return lanes(self.left, self.right, with_seed(shared))


def live_duet(shared: Settings, options: SideOptions) -> Duet:
    """Both lanes on an engine of their own, not yet started.

    Raises:
        AppError, EngineError: an option means nothing.
    """
    pair = options.pair(shared)
    order = Order(options.order)
    engine = LaneEngine([lane_config(settings, exact=options.exact) for settings in pair], order)
    return Duet(pair, (LaneSource(engine, 0), LaneSource(engine, 1)), order, lambda: engine.lanes)
