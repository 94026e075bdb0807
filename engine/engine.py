"""The engine as its users see it: a thread that loads the models and then runs rounds.

This module imports neither torch nor transformers; `engine.loop` does, inside the thread.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.events import Died, Event, Finished, FinishReason, Ready
from engine.outbox import Outbox
from engine.request import Request

if TYPE_CHECKING:
    from engine.loop import Loop


class Engine:
    """One engine thread. Commands go in through the methods, events come out of outboxes.

    Every event of a request goes to the outbox given at `submit`, else to `self.outbox`, which also gets everything
    that concerns the engine as a whole (`Loading`, `Ready`, `Notice`, `Died`). All methods may be called from any
    thread; none of them waits for the models, except `wait_ready` and `stream`.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.outbox = Outbox()
