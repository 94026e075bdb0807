"""The speculative decoding engine: models, caches, drafters, acceptance, rounds. It knows of no interface.

    from engine import Engine, EngineConfig, Request

Importing this package loads neither torch nor transformers; the engine's thread does.
"""

from engine.compare.figures import Comparison, LaneTally
from engine.config import DEVICES, DTYPES, EngineConfig
from engine.engine import Engine
from engine.errors import EngineError
from engine.events import (
    Admitted,
    Candidate,
    Detail,
    Died,
    Event,
    Fate,
    Finished,
    FinishReason,
    Loading,
    Notice,
    Prefilled,
    Ready,
    Refused,
    Round,
    Token,
)
from engine.gain import Baseline, Gain, Gains
from engine.lane_engine import LaneEngine, LaneReady
from engine.lanes import Order
from engine.outbox import Outbox
from engine.request import Message, Request, Sampling
from engine.statistics import WINDOW_S, Statistics
from engine.trace import Record, TraceWriter, from_json, read_trace, to_json

__all__ = [
    "DEVICES",
    "DTYPES",
    "WINDOW_S",
    "Admitted",
    "Baseline",
    "Candidate",
    "Comparison",
    "Detail",
    "Died",
    "Engine",
    "EngineConfig",
    "EngineError",
    "Event",
    "Fate",
    "FinishReason",
    "Finished",
    "Gain",
    "Gains",
    "LaneEngine",
    "LaneReady",
    "LaneTally",
    "Loading",
    "Message",
    "Notice",
    "Order",
    "Outbox",
    "Prefilled",
    "Ready",
    "Record",
    "Refused",
    "Request",
    "Round",
    "Sampling",
    "Statistics",
    "Token",
    "TraceWriter",
    "from_json",
    "read_trace",
    "to_json",
]
