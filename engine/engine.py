"""The engine as its users see it: a thread that loads the models and then runs rounds.

This module imports neither torch nor transformers; `engine.loop` does, inside the thread.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from engine.commands import Adjust, Cancel, Close, Command, Pause, Resume, SetDetail, Step, Submit
from engine.config import EngineConfig
from engine.errors import EngineError, unknown_drafter
from engine.events import Died, Event, Finished, FinishReason, Loading, Ready
from engine.outbox import Outbox
from engine.request import AUTO, Request, check_gamma

if TYPE_CHECKING:
    from engine.assembly import Assemble
    from engine.lane_loop import LaneLoop
    from engine.loop import Loop

_POLL_S = 0.5


class Engine:
    """One engine thread. Commands go in through the methods, events come out of outboxes.

    Every event of a request goes to the outbox given at `submit`, else to `self.outbox`, which also gets everything
    that concerns the engine as a whole (`Loading`, `Ready`, `Notice`, `Died`). All methods may be called from any
    thread; none of them waits for the models, except `wait_ready` and `stream`.

    Args:
        config: what to load and how much room to give it.
        assemble: makes the models; `engine.assembly.assemble` unless given (benchmarks bring their own).
    """

    def __init__(self, config: EngineConfig, assemble: Assemble | None = None) -> None:
        self.config = config
        self._assemble = assemble
        self.outbox = Outbox()
        self.ready: Ready | None = None
        """Set once the models are loaded."""
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)
        self._epoch = time.perf_counter()
        self._settled = threading.Event()
        self._death: str | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin loading, in the engine's own thread."""
        self._thread.start()

    def clock(self) -> float:
        """Seconds since the engine was made: the time scale of every event."""
        return time.perf_counter() - self._epoch

    def submit(self, request: Request, outbox: Outbox | None = None) -> None:
        """Ask for a reply. Before the models are loaded, and while all slots are taken, it waits its turn."""
        self._ask(Submit(request, outbox or self.outbox, self.clock()))

    def _ask(self, submitted: Submit) -> None:
        with self._lock:
            if self._death is None:
                self._commands.put(submitted)
                return
        self._refuse(submitted, self._death)

    def cancel(self, request_id: str) -> None:
        """End a request within one round. Unknown ids are ignored: the request may just have finished."""
        self._commands.put(Cancel(request_id))

    def adjust(self, request_id: str, drafter: str, gamma: int | None) -> None:
        """Draft otherwise for a request, running or waiting, from its next round on; unknown ids are ignored.

        This is exact: whatever drafts, the reply is distributed as the target's own, and a greedy one is the same.

        Raises:
            EngineError: γ is out of range, or the loaded models have no such drafter.
        """
        check_gamma(gamma)
        if self.ready is not None and drafter not in (AUTO, *self.ready.drafters):
            raise EngineError(unknown_drafter(drafter, self.ready.drafters))
        self._commands.put(Adjust(request_id, drafter, gamma))

    def pause(self) -> None:
        """Finish the round under way, then run no further one until `resume`; requests can be cancelled meanwhile."""
        self._commands.put(Pause())

    def step(self) -> None:
        """While paused: run one round. Where nothing is asked yet, it is the first one that will be."""
        self._commands.put(Step())

    def resume(self) -> None:
        """Go on after `pause`."""
        self._commands.put(Resume())

    def set_detail(self, request_id: str, detail: int) -> None:
        """Change `Request.detail` of a request, waiting or running, from its next round on; unknown ids are ignored.

        Raises:
            EngineError: `detail` is negative.
        """
        if detail < 0:
            raise EngineError(f"detail is {detail}: it must be 0 (off) or more")
        self._commands.put(SetDetail(request_id, detail))

    def close(self, timeout: float | None = 5.0) -> None:
        """End every request and the thread; waits up to `timeout` seconds for it."""
        self._commands.put(Close())
        if self._thread.is_alive():
            self._thread.join(timeout)

    def wait_ready(self, timeout: float | None = None) -> Ready:
        """Wait until the models are loaded.

        Raises:
            EngineError: they could not be loaded, or not within `timeout` seconds.
        """
        self._settled.wait(timeout)
        if self._death is not None:
            raise EngineError(self._death)
        if self.ready is None:
            raise EngineError(f"the models were not loaded within {timeout:g} seconds")
        return self.ready

    def stream(self, request: Request) -> Iterator[Event]:
        """Ask for a reply and yield its events as they come, `Finished` last.

        Closing the iterator early cancels the request. An engine that dies ends it with `FinishReason.ERROR`.
        """
        outbox = Outbox()
        self.submit(request, outbox)
        finished = False
        try:
            while not finished:
                event = outbox.get(_POLL_S)
                if event is not None:
                    finished = isinstance(event, Finished)
                    yield event
        finally:
            if not finished:
                self.cancel(request.request_id)

    def _main(self) -> None:
        loop: Loop | LaneLoop | None = None
        try:
            self.outbox.put(Loading("import", "starting the engine", None, self.clock()))
            from engine.assembly import assemble

            loop = self._make_loop()
            loop.run(self._assemble or assemble)
            self._die("the engine is closed", loop, quiet=True)
        except EngineError as error:
            self._die(str(error), loop)
        except MemoryError:
            self._die("the engine ran out of memory: close other programs or choose a smaller model", loop)
        except BaseException as error:  # whatever it was, every waiting caller has to hear of it
            self._die(f"the engine stopped on an internal error ({type(error).__name__}: {error})", loop)

    def _make_loop(self) -> Loop | LaneLoop:
        from engine.loop import Loop

        return Loop(self.config, self._commands, self.outbox, self.clock, self._on_ready)

    def _on_ready(self, ready: Ready) -> None:
        self.ready = ready
        self.outbox.put(ready)
        self._settled.set()

    def _die(self, message: str, loop: Loop | LaneLoop | None, *, quiet: bool = False) -> None:
        with self._lock:
            self._death = message
        if loop is not None:
            loop.fail(message)
        while not self._commands.empty():
            command = self._commands.get()
            if isinstance(command, Submit):
                self._refuse(command, message)
        if not quiet:
            self.outbox.put(Died(message, self.clock()))
        self._settled.set()

    def _refuse(self, submitted: Submit, message: str | None) -> None:
        finished = Finished(submitted.request.request_id, FinishReason.ERROR, "", message or "", self.clock())
        submitted.outbox.put(finished)
