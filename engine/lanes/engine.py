"""Engine with lanes: several configurations in one thread, each on a clock that counts only its own work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specchat.engine.commands import Submit
from specchat.engine.config import EngineConfig
from specchat.engine.engine import Engine
from specchat.engine.events import Outbox, Ready
from specchat.engine.lanes.order import Order
from specchat.engine.request import Request

if TYPE_CHECKING:
    from specchat.engine.lanes.worker import LanesWorker
    from specchat.engine.worker.assembly import Assemble, Assembly


@dataclass(frozen=True, slots=True)
class LaneReady:
    """Description of a loaded lane."""

    ready: Ready
    draft_share: float
    """ĉ: bytes of weights of the draft model or head / of the target; 0 without either."""
    exact: bool | None
    """Whether passes are batch-invariant on this device (measured); None if not asked for."""
    exact_cost: float | None
    """Time of a batch-invariant pass / time of an ordinary pass over one token, measured at the start."""


class LaneEngine(Engine):
    """`Engine` with one lane per configuration. Events of a request are timed by its lane's clock.

    Equal models are loaded once. Each lane has its own KV cache, drafters and latency model.

    Args:
        configs: one per lane; each lane runs one request at a time, so `slots` is 1.
        order: how the lanes share the device; may be changed while no lane is busy.
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

    @property
    def same_target(self) -> bool:
        """Whether all lanes have the same target."""
        return len({config.target for config in self.configs}) == 1

    def submit(self, request: Request, outbox: Outbox | None = None, lane: int = 0) -> None:
        """Submit a request to a lane.

        Args:
            request: the request.
            outbox: for its events; the engine's own by default.
            lane: index of the lane.

        Raises:
            EngineError: as for `Engine.submit`.
        """
        self._enqueue(Submit(request, outbox or self.outbox, self.clock(), lane))

    def _make_worker(self) -> LanesWorker:
        from specchat.engine.lanes.worker import LanesWorker

        report = self._on_lanes, self._requests.end
        return LanesWorker(self.configs, self._commands, self.outbox, lambda: self.order, *report, self._closing)

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
        self._on_ready(readies[0], *made)
