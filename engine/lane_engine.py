"""An engine with lanes: several set-ups in one thread, each on a clock that counts only its own work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.commands import Submit
from engine.config import EngineConfig
from engine.engine import Engine
from engine.events import Ready
from engine.lanes import Order
from engine.outbox import Outbox
from engine.request import Request

if TYPE_CHECKING:
    from engine.assembly import Assemble, Assembly
    from engine.lane_loop import LaneLoop


@dataclass(frozen=True, slots=True)
class LaneReady:
    """A lane is loaded."""

    ready: Ready
    draft_share: float
    """ĉ: weights of the draft model or head / weights of the target, 0 where neither is loaded."""
    exact: bool | None
    """Whether passes of fixed shape give equal bits here; None where they were not asked for."""
    exact_cost: float | None
    """Time of such a pass / time of a pass over one token, measured at the start."""


class LaneEngine(Engine):
    """Like `Engine`, with a lane for each configuration. Events of a request are timed by the clock of its lane.

    Equal models are loaded once. Every lane has its own cache, drafters and cost table.

    Args:
        configs: one per lane; each lane runs one request at a time, so `slots` is 1.
        order: how the lanes share the device; may be set anew while no lane is busy.
        assemble: as for `Engine`; called once per lane.
    """

    def __init__(
        self, configs: Sequence[EngineConfig], order: Order = Order.INTERLEAVED, assemble: Assemble | None = None
    ) -> None:
        super().__init__(configs[0], assemble)
        self.configs = tuple(configs)
        self.order = order
        self.lanes: tuple[LaneReady, ...] = ()
        """One per lane, once the models are loaded."""

    def submit(
        self, request: Request, outbox: Outbox | None = None, lane: int = 0, continuation: Sequence[int] = ()
    ) -> None:
        """Ask a lane for a reply.

        Args:
            request: what to answer.
            outbox: for its events; the engine's own if left out.
            lane: number of the lane.
            continuation: tokens that the reply is to begin behind, as if they had been emitted.
        """
        self._ask(Submit(request, outbox or self.outbox, self.clock(), lane, tuple(continuation)))

    def _make_loop(self) -> LaneLoop:
        from engine.lane_loop import LaneLoop

        return LaneLoop(self.configs, self._commands, self.outbox, lambda: self.order, self._on_lanes)

    def _on_lanes(self, readies: Sequence[Ready], made: Sequence[Assembly]) -> None:
        self.lanes = tuple(
            LaneReady(
                ready,
                draft_share=(each.weight_bytes - each.model.weight_bytes) / each.model.weight_bytes,
                exact=each.exact.equal if each.exact else None,
                exact_cost=each.exact.cost if each.exact else None,
            )
            for ready, each in zip(readies, made, strict=True)
        )
        self._on_ready(readies[0])
