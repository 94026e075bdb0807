"""Side-by-side mode with an attached server as the right lane."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from specchat.app.settings.settings import Settings
from specchat.app.side_by_side.attached_lanes import AttachedLanes
from specchat.app.side_by_side.duet import Duet, SideOptions
from specchat.app.side_by_side.set_up import lane_config
from specchat.app.sources.lane_source import LaneSource
from specchat.engine import LaneEngine, Order

if TYPE_CHECKING:
    from specchat.app.sources.attached import AttachedEngine


def attached_duet(shared: Settings, options: SideOptions, server: AttachedEngine) -> Duet:
    """A local lane, drafting by options or settings, and a server; not yet started.

    Raises:
        AppError, EngineError: an option is not understood, or out of range.
    """
    pair = replace(options, left=options.left or shared.drafter).pair(shared)
    engine = LaneEngine([lane_config(pair[0], exact=options.exact)], Order.SEQUENTIAL)
    both = AttachedLanes(engine, server, live=True)
    return Duet(pair, (LaneSource(both, 0), LaneSource(both, 1)), both.order, lambda: both.lanes, server.url)
