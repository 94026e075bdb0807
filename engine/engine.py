"""Public interface of the engine: a thread that loads the models and runs rounds.

This module imports neither torch nor transformers; `engine.worker.worker` does, in the thread.
"""

from __future__ import annotations

import gc
import queue
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from specchat.engine import commands
from specchat.engine.commands import OpenRequests
from specchat.engine.config import EngineConfig
from specchat.engine.drafters.other_chats import OtherChats
from specchat.engine.errors import ClosingError, EngineError, check, check_system
from specchat.engine.events import Clock, Died, Event, Finished, Loading, Outbox, Ready
from specchat.engine.registry import unknown_drafter
from specchat.engine.request import AUTO, Message, Request, Tool, check_gamma
from specchat.engine.round import TokenScore
from specchat.engine.sequence.detokenizer import texts_of
from specchat.engine.sequence.grammar import check_constraint
from specchat.engine.sequence.prompt import check_conversation, check_tokens, encode
from specchat.engine.threads import JoinedThread

if TYPE_CHECKING:
    from specchat.engine.worker.assembly import Assemble, Assembly

_POLL_S = 0.5
_CLOSE_S = 5.0
_INTERNAL = "the engine stopped on an internal error"
_Result = TypeVar("_Result")


class _Serves(Protocol):
    """Worker of the engine's thread: `engine.worker.worker.Worker`, or `LanesWorker`."""

    def run(self, assemble: Assemble) -> None:
        """Load the models, then serve until closed."""

    def fail(self, message: str) -> None:
        """Finish every open request with an error."""


class Engine:
    """One engine thread. Commands go in through the methods, events come out of outboxes.

    As a context manager it starts the thread and closes the engine at the end, without waiting for models that are
    still being loaded. A program may also end while the thread runs.

    Every event of a request goes to the outbox given at `submit`, else to `self.outbox`, which also gets everything
    that concerns the engine as a whole (`Loading`, `Ready`, `Notice`, `Died`). All methods may be called from any
    thread; none of them waits for the models, except `wait_ready` and `stream`.

    Args:
        config: models, device and capacity.
        assemble: loads the models; `engine.worker.assembly.assemble` by default.
    """

    def __init__(self, config: EngineConfig, assemble: Assemble | None = None) -> None:
        self.config = config
        self._assemble = assemble
        self.outbox = Outbox()
        self.ready: Ready | None = None
        """Set once the models are loaded."""
        self.other_chats: OtherChats | None = None
        """Store of other chats as a source of drafts, once the models are loaded; None for encoder-decoders and engines
        with lanes."""
        self._commands: queue.SimpleQueue[commands.Command] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = JoinedThread("engine", self._main, stop=partial(self.close, 0.0))
        self.clock = Clock()
        """Seconds since the engine was created, without pauses: the time scale of all events."""
        self._settled = threading.Event()
        self._requests = OpenRequests(self._commands, self.clock)
        self._vocabularies: tuple[int, ...] = ()
        """Vocabulary size of each lane's model, once they are loaded."""
        self._tokenizer: Any = None
        """Tokenizer of the first lane's model, once it is loaded."""

    def start(self) -> None:
        """Start the engine's thread, which loads the models.

        Raises:
            EngineError: specchat does not support this operating system.
        """
        check_system()
        self._thread.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close(_CLOSE_S if self.ready else 0.0)

    def submit(self, request: Request, outbox: Outbox | None = None) -> None:
        """Submit a request. It is queued while the models are loading and while all slots are taken.

        Errors that depend on the models (a prompt that is too long, an unknown drafter, and before they are loaded a
        token id outside the vocabulary) end the request with `FinishReason.ERROR` instead of raising.

        Raises:
            EngineError: the prompt is not valid, or a request of this id is still open.
        """
        self._enqueue(commands.Submit(request, outbox or self.outbox, self.clock()))

    def examine(self, request: Request, continuation: Sequence[int], outbox: Outbox | None = None) -> None:
        """Like `submit`, with a reply that continues after the token ids `continuation`, as if they had been emitted.

        With `Request.detail`, its first round shows the distributions of target and drafter there.
        """
        self.submit(replace(request, reply_ids=tuple(continuation)), outbox)

    def _enqueue(self, submitted: commands.Submit) -> None:
        submitted.request.check_prompt()
        if submitted.request.constraint:
            check_constraint(submitted.request.constraint)
        if self._vocabularies:
            submitted.request.check_vocabulary(self._vocabularies[submitted.lane])
        self._requests.add(submitted)

    def cancel(self, request_id: str) -> None:
        """End a request within one round. Unknown ids are ignored, as the request may just have finished."""
        self._requests.cancel(request_id)

    def adjust(self, request_id: str, drafter: str, gamma: int | None) -> None:
        """Change drafter and γ of a request, running or waiting, from its next round on; unknown ids are ignored.

        The distribution of the reply does not change, and a greedy reply stays the same.

        Raises:
            EngineError: γ is out of range, or the loaded models have no such drafter.
        """
        check_gamma(gamma)
        if self.ready is not None and drafter not in (AUTO, *self.ready.drafters):
            raise EngineError(unknown_drafter(drafter, (AUTO, *self.ready.drafters)))
        self._commands.put(commands.Adjust(request_id, drafter, gamma))

    def pause(self) -> None:
        """Finish the current round, then run none until `step` or `resume`; requests can still be cancelled."""
        self._commands.put(commands.Pause())

    def step(self) -> None:
        """While paused, run one round; if no request is open, the first round of the next one."""
        self._commands.put(commands.Step())

    def resume(self) -> None:
        """End a pause."""
        self._commands.put(commands.Resume())

    def set_detail(self, request_id: str, detail: int) -> None:
        """Change `Request.detail` of a request, waiting or running, from its next round on; unknown ids are ignored.

        Raises:
            EngineError: `detail` is negative.
        """
        check(detail >= 0, f"detail is {detail}: it must be 0 (off) or more")
        self._commands.put(commands.SetDetail(request_id, detail))

    def count(self, messages: tuple[Message, ...], key: str = "", tools: tuple[Tool, ...] = ()) -> None:
        """Count the prompt tokens of these messages and tools, between two rounds.

        The answer is a `Counted` event with this key.
        There is no answer if the model's chat template refuses the conversation.
        """
        self._commands.put(commands.Count(messages, key, tools))

    def show_cache(self) -> None:
        """Report what the cache holds; the answer is a `CacheUse` event, between two rounds."""
        self._commands.put(commands.ShowCache())

    def keep_texts(self, names: Mapping[str, str], timeout: float = 60.0) -> None:
        """Write the cache of texts to `EngineConfig.kept`, from where the next start loads it; waits until it is done.

        Args:
            names: of a text, by the ids of its requests; of each name the text that was used last is written.
            timeout: seconds.
        """
        if self.ready is not None:
            with suppress(EngineError, TimeoutError):
                self._requests.ask(lambda result: commands.KeepTexts(names, result)).result(timeout)

    def borrow(self, work: Callable[[Assembly, int], Generator[None, None, _Result]]) -> Future[_Result]:
        """Run other work with the loaded models, one step between two rounds, in the engine's thread.

        Engines with lanes do not support it.

        Args:
            work: generator function of the loaded parts and a reserved slot of the target's cache; its return value
                is the result.

        Returns:
            The result, or an `EngineError` if the work fails or the engine ends. Cancelling it ends the work.
        """
        return self._requests.ask(lambda result: commands.Borrow(work, result))

    def drain(self) -> list[Event]:
        """All events in `self.outbox` since the last call; never waits."""
        return self.outbox.drain()

    def close(self, timeout: float | None = _CLOSE_S) -> bool:
        """End all requests and the thread, while models are loaded at the next progress report.

        Args:
            timeout: seconds to wait for the thread; None for as long as it takes.

        Returns:
            Whether the thread has ended.
        """
        self._closing.set()
        self._commands.put(commands.Close())
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def wait_ready(self, timeout: float | None = None) -> Ready:
        """Wait until the models are loaded.

        Raises:
            EngineError: loading failed, or took longer than `timeout` seconds.
        """
        self._settled.wait(timeout)
        if self._requests.end_reason is not None:
            raise EngineError(self._requests.end_reason)
        if self.ready is None:
            raise EngineError(f"the models were not loaded within {timeout:g} seconds")
        return self.ready

    def prompt_ids(self, request: Request) -> list[int]:
        """Token ids of a request's prompt for the loaded model; nothing is submitted.

        Raises:
            EngineError: the models are not loaded, the prompt is not valid, the chat template refuses it, or the model
                does not support conversations.
        """
        if self._tokenizer is None or self.ready is None:
            raise EngineError("the models are still being loaded: ask again when they are")
        request.check_prompt()
        check_conversation(request, self.ready.target, conversations=self.ready.conversations)
        ids = encode(request, self._tokenizer)
        check_tokens(ids, self._tokenizer, self._vocabularies[0])
        return ids

    def prompt_texts(self, ids: Sequence[int]) -> list[str]:
        """Text that each of these tokens adds to a text, of special tokens too; the models must be loaded."""
        return texts_of(ids, self._tokenizer)

    def score_prompt(self, ids: Sequence[int], top: int) -> Future[list[TokenScore]]:
        """Scores of all tokens of a text but the first, each with its `top` most likely tokens.

        The text is read between the rounds of requests, one text after the other.

        Returns:
            The scores, or an `EngineError` if that fails or the engine ends.

        Raises:
            EngineError: a token is not in the vocabulary.
        """
        from specchat.engine.worker.side_work import score

        Request("score", prompt_ids=tuple(ids)).check_vocabulary(self._vocabularies[0])
        return self.borrow(partial(score, ids=ids, top=top))

    def stream(self, request: Request) -> Iterator[Event]:
        """Submit a request and yield its events as they arrive, `Finished` last.

        Closing the iterator early cancels the request. If the engine dies, `Finished` has `FinishReason.ERROR`.
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
        worker: _Serves | None = None
        try:
            self.outbox.put(Loading("import", "starting the engine", None, self.clock()))
            with _import_of_torch():
                from specchat.engine.worker.assembly import assemble

                worker = self._make_worker()
            worker.run(self._assemble or assemble)
            self._die(worker, None)
        except ClosingError:
            self._die(worker, None)
        except BaseException as error:  # waiting callers need an answer, whatever the error
            self._die(worker, error)
        del worker
        _free_gpu_memory()

    def _make_worker(self) -> _Serves:
        from specchat.engine.worker.worker import Worker

        end = partial(self._requests.end, 0)
        return Worker(self.config, self._commands, self.outbox, self.clock, self._on_ready, end, self._closing)

    def _on_ready(self, ready: Ready, *made: Assembly) -> None:
        self._vocabularies = tuple(each.model.vocab_size for each in made)
        self._tokenizer = made[0].model.tokenizer if made else None
        if len(made) == 1 and ready.conversations:
            self.other_chats = OtherChats(made[0].datastore, self._tokenizer, self._vocabularies[0])
        self.ready = ready
        self.outbox.put(ready)
        self._settled.set()

    def _die(self, worker: _Serves | None, error: BaseException | None) -> None:
        """Fail open requests, and emit `Died` after an error; the worker may be in any state."""
        message = _reason(error)
        self._requests.refuse_more(message)
        with suppress(BaseException):
            if worker is not None:
                worker.fail(message)
        self._requests.fail_rest(message)
        if error is not None:
            self.outbox.put(Died(message, self.clock()))
        self._settled.set()


def _free_gpu_memory() -> None:
    """Free what the models of this thread held on a GPU: backends are parts of reference cycles."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        from specchat.engine.worker.assembly import free_memory

        free_memory()


@contextmanager
def _import_of_torch() -> Iterator[None]:
    """Context manager: objects created by the first import of torch are excluded from garbage collection.

    They live as long as the process, and traversing them takes a fifth of the start time.
    """
    if "torch" in sys.modules:
        yield
        return
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if collected:
            gc.enable()


def _reason(error: BaseException | None) -> str:
    """Why the engine has ended, as a sentence."""
    if error is None:
        return "the engine is closed"
    if isinstance(error, MemoryError):
        return "the engine ran out of memory: close other programs or choose a smaller model"
    try:
        text = str(error)
    except Exception:  # its __str__ is broken
        text = "no description"
    return text if isinstance(error, EngineError) else f"{_INTERNAL} ({type(error).__name__}: {text})"
