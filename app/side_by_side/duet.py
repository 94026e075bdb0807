"""Two conversations with the same prompts: each prompt is sent to both lanes, the next one when both have answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from specchat.app.chat import branches
from specchat.app.chat.archive import Archive
from specchat.app.chat.conversation import Conversation
from specchat.app.chat.reply import Reply
from specchat.app.chat.reply_stage import Stage, furthest
from specchat.app.chat.request_manager import RequestManager, Session
from specchat.app.errors import UsageError
from specchat.app.settings.settings import Settings
from specchat.app.side_by_side.lanes import SPECCHAT_SERVER, AttachedLanes, LaneSource
from specchat.app.side_by_side.set_up import label, lane_config, lanes, with_seed
from specchat.app.sources.observed import resolve_rounds
from specchat.engine import Comparison, Event, LaneEngine, LaneReady, LaneTally, Order, Record, Request, Totals

if TYPE_CHECKING:
    from specchat.app.sources.attached import AttachedEngine

SIDES = ("left", "right")


class Lane:
    """One lane: its conversation, and the figures of its last reply.

    Args:
        settings: Its settings.
        source: Its source.
        new_tally: Makes the figures of a reply.
    """

    def __init__(self, settings: Settings, source: LaneSource, new_tally: Callable[[], LaneTally]) -> None:
        self.settings, self.source = settings, source
        self.conversation = Conversation()
        self.requests = RequestManager(self._count)
        self.requests.running.side_by_side = True
        self._new_tally = new_tally
        self.reset()

    def reset(self) -> None:
        """Forget the last reply: a new one begins."""
        self.tally = LaneTally()
        self._tallied = ""
        """The request of these figures."""
        self._heard: list[Event] = []
        """The events counted in these figures."""

    @property
    def reply(self) -> Reply | None:
        """The last reply."""
        prompts = self.conversation.prompts
        return prompts[-1].reply if prompts else None

    def keep_gain(self, comparison: Comparison) -> None:
        """Store what was measured against the other lane as the speedup of the last reply."""
        gain, reply = comparison.gain(self.tally), self.reply
        if gain is not None and reply is not None and reply.measured is not None:
            self.requests.measure(reply, replace(reply.measured, gain=gain, rounds=self.tally.metrics.rounds))

    def _count(self, _conversation: Conversation, _reply: Reply, event: Event) -> None:
        """Count an event of a reply; the first one of a request starts a new tally."""
        request_id = str(getattr(event, "request_id", ""))
        if request_id != self._tallied:
            self._tallied, self._heard, self.tally = request_id, [], self._new_tally()
        self._heard.append(event)
        if not isinstance(event, Totals):
            self.tally.add(event)
            return
        self.tally = self._new_tally()  # a server has reported the fates of the counted tokens
        for told in resolve_rounds(self._heard):
            if not isinstance(told, Request):  # only a trace has one
                self.tally.add(told)


@dataclass(eq=False)
class Duet:
    """Both lanes of the side-by-side mode: prompts, replies, and their comparison."""

    _pair: tuple[Settings, Settings]
    """Settings of each lane."""
    _sources: InitVar[tuple[LaneSource, LaneSource]]
    """Source of each lane."""
    order: Order
    """How the lanes share the device."""
    readies: Callable[[], tuple[LaneReady, ...]]
    """Returns the state of each lane once its models are loaded; empty before."""
    server: str | None = None
    """Address of the attached server of the right lane; None if both lanes are local."""
    waiting: list[str] = field(default_factory=list, init=False)
    """Prompts to send when both lanes have answered."""
    runs: list[float] = field(default_factory=list, init=False)
    """Measured speedup of each run of the last prompt."""
    _asked_gap = False
    _counted = False
    """Whether the last replies are in `runs`."""

    def __post_init__(self, _sources: tuple[LaneSource, LaneSource]) -> None:
        self.lanes = [
            Lane(settings, source, partial(self._new_tally, side))
            for side, (settings, source) in enumerate(zip(self._pair, _sources, strict=True))
        ]
        self.lanes[1].conversation.other_lane = self.lanes[0].conversation
        self.conversations = tuple(lane.conversation for lane in self.lanes)

    def connect(self, archive: Archive) -> None:
        """Start the engine; both conversations are stored in `archive`, as branches of one chat."""
        for side, lane in enumerate(self.lanes):
            lane.requests.connect(Session(lane.source, lane.settings, attached=self.observes(side)), archive)

    def send(self, prompt: str) -> None:
        """Send a prompt to both lanes, now or when they have answered."""
        self.waiting.append(prompt)
        self._next()

    def regenerate(self) -> None:
        """Request the last replies once more, to see the spread of the figures; the earlier replies are kept."""
        if self.done and not self.waiting and not self.lanes[0].source.asking:
            self._begin()
            for lane in self.lanes:
                branches.regenerate(lane.requests, lane.conversation, lane.conversation.prompts[-1], lane.settings)

    def stop(self) -> list[str]:
        """End both replies, keeping their texts, and take waiting prompts back."""
        taken, self.waiting = self.waiting, []
        before = [lane.requests.stop(lane.conversation) for lane in self.lanes]
        return [*before[0], *taken]

    def drain(self) -> Iterator[Record]:
        """Deliver the records of both lanes to their replies; yield all others."""
        for lane in self.lanes:
            yield from lane.requests.drain()
        self._next()
        if self.done and not self._counted:
            self._counted = True
            comparison = self.comparison
            self.runs += [comparison.measured] if comparison.measured is not None else []
            for lane in self.lanes:
                lane.keep_gain(comparison)
        if self.done and not self._asked_gap and self.comparable and not self.comparison.identical:
            self._asked_gap = True
            self.lanes[0].source.ask_gap(self.comparison)

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the lanes. The best drafter is known once the models are loaded, a server once it has answered."""
        readies = self.readies()
        offered = [lane.ready.drafters for lane in readies] or [(), ()]
        left, right = (label(settings, names) for settings, names in zip(self._pair, offered, strict=True))
        if self.server is not None:
            met = readies[1].ready if readies else None
            right = (met.observed or SPECCHAT_SERVER) if met and met.target else self.server
        return left, right

    @property
    def targets(self) -> tuple[str, str]:
        """The target of each lane; a server's as it names it, empty before."""
        left, right = (settings.target for settings in self._pair)
        if self.server is not None:
            readies = self.readies()
            right = readies[1].ready.target if readies else ""
        return left, right

    def observes(self, side: int) -> bool:
        """Whether this lane is an attached server, timed by its stream."""
        return side == 1 and self.server is not None

    def ready(self) -> None:
        """Start sending: the models are loaded. Both lanes sample alike, by default as the left model recommends."""
        own = self.readies()[0].ready.sampling
        seed = with_seed(self._pair[0].with_model(own)).seed
        for lane, target in zip(self.lanes, self.targets, strict=True):
            lane.settings = lane.requests.settings = replace(lane.settings.with_model(own), seed=seed)
            lane.requests.ready(target)

    def fail(self, sentence: str) -> None:
        """Fail every prompt with this sentence: there is no engine."""
        for lane in self.lanes:
            lane.requests.fail(sentence)

    def end(self) -> None:
        """End the replies, store them, and close the engine."""
        for lane in self.lanes:
            lane.requests.end()

    @property
    def running(self) -> bool:
        """Whether a lane is still answering."""
        return any(conversation.running for conversation in self.conversations)

    @property
    def stage(self) -> Stage | None:
        """The furthest stage of both lanes; None if none is answering."""
        return furthest(lane.requests.running.stage for lane in self.lanes)

    @property
    def stopping(self) -> bool:
        """Whether a lane is being stopped."""
        return any(reply.stopping for conversation in self.conversations for reply in conversation.all_running)

    @property
    def done(self) -> bool:
        """Whether both lanes have answered the last prompt."""
        return all(lane.reply is not None and not lane.reply.running for lane in self.lanes)

    @property
    def comparison(self) -> Comparison:
        """How the lanes' last replies compare."""
        left, right = self.lanes
        return Comparison(left.tally, right.tally, self.same_target)

    @property
    def greedy(self) -> bool:
        """Whether both lanes are greedy."""
        return all(lane.settings.sampling().greedy for lane in self.lanes)

    @property
    def comparable(self) -> bool:
        """Whether the last texts must be equal: same target and prompt, greedy in both lanes."""
        return self.same_target and self.greedy and self.same_prompt

    @property
    def same_target(self) -> bool:
        """Whether both lanes have the same target, which is unknown for a server."""
        return self.server is None and self.targets[0] == self.targets[1]

    @property
    def same_prompt(self) -> bool:
        """Whether both lanes have the same conversation; not after earlier texts differ."""
        left, right = (c.messages(c.prompts[-1]) if c.prompts else () for c in self.conversations)
        return left == right

    @property
    def gap(self) -> float | None:
        """Difference of the target's best logits where the texts diverge; None while unknown."""
        return self.lanes[0].source.gap

    def _next(self) -> None:
        if self.waiting and not self.running and not self.lanes[0].source.asking:
            prompt, self.runs = self.waiting.pop(0), []
            self._begin()
            for lane in self.lanes:
                lane.requests.send(lane.conversation, prompt)

    def _begin(self) -> None:
        """Reset the figures for new replies."""
        self._asked_gap = self._counted = False
        for lane in self.lanes:
            lane.reset()

    def _new_tally(self, side: int) -> LaneTally:
        readies = self.readies()
        return LaneTally(readies[side].draft_share if readies else 0.0)


@dataclass(frozen=True, slots=True)
class SideOptions:
    """Command line options of the side-by-side mode."""

    left: str | None = None
    right: str | None = None
    order: str = Order.INTERLEAVED.value
    exact: bool = False

    def pair(self, shared: Settings) -> tuple[Settings, Settings]:
        """The settings of both lanes.

        Raises:
            AppError: an option is not understood.
        """
        if self.order not in tuple(Order):
            raise UsageError(f"--order {self.order!r} is not known: choose {' or '.join(Order)}")
        return lanes(self.left, self.right, shared)


def live_duet(shared: Settings, options: SideOptions) -> Duet:
    """Both lanes on one new engine, not yet started.

    Raises:
        AppError, EngineError: an option is not understood, or out of range.
    """
    pair = options.pair(shared)
    order = Order(options.order)
    engine = LaneEngine([lane_config(settings, exact=options.exact) for settings in pair], order)
    return Duet(pair, (LaneSource(engine, 0), LaneSource(engine, 1)), order, lambda: engine.lanes)


def attached_duet(shared: Settings, options: SideOptions, server: AttachedEngine) -> Duet:
    """A local lane, drafting by options or settings, and a server; not yet started.

    Raises:
        AppError, EngineError: an option is not understood, or out of range.
    """
    pair = replace(options, left=options.left or shared.drafter).pair(shared)
    engine = LaneEngine([lane_config(pair[0], exact=options.exact)], Order.SEQUENTIAL)
    both = AttachedLanes(engine, server, live=True)
    return Duet(pair, (LaneSource(both, 0), LaneSource(both, 1)), both.order, lambda: both.lanes, server.url)
