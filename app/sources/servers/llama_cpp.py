"""llama.cpp's server: counters of drafts in every chunk, so tokens are told apart while they come.

Source: ggml-org/llama.cpp, `tools/server/server-task.cpp` (`result_timings::to_json`, which leaves `draft_n` out while
it is 0) and `tools/server/server-context.cpp` (`draft_n` and `draft_n_accepted` rise when a pass has judged a draft,
then its tokens are sent one by one; no chunk is sent for a token that ends inside a character or might begin a stop
string). `GET /props` is in `tools/server/README.md`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from specchat.app.sources.servers.listing import Listing, observed_ready
from specchat.app.sources.servers.protocol import count, path, read_chunk, standard_body
from specchat.app.sources.servers.reply_stream import ReplyStream
from specchat.app.sources.servers.server import Ask, Call, Clock
from specchat.engine import MOST_DRAFTED, Event, Finished, Prefilled, Ready, Request, Step

NAME = "llama.cpp"
EXTENSIONS = {"top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repeat_penalty"}


class LlamaCpp:
    """A llama.cpp server.

    Args:
        ready: its model, and what `/props` says.
        model: the name of the model, which is the path of its file unless the server gives it another.
    """

    def __init__(self, ready: Ready, model: str) -> None:
        self.ready = ready
        self._model = model

    @classmethod
    def found(cls, listing: Listing) -> LlamaCpp | None:
        """The server, if it has `/props`."""
        props = listing.ask("/props", None) if listing.owned_by("llamacpp") else None
        if not isinstance(props, Mapping):
            return None
        context, slots = count(props.get("default_generation_settings"), "n_ctx"), count(props, "total_slots")
        model = listing.model()
        return cls(observed_ready(NAME, re.split(r"[/\\]", model)[-1] or model, context=context, slots=slots), model)

    def call(self, request: Request, ask: Ask) -> Call:  # noqa: ARG002
        """The request, with counters in every chunk and the thoughts of a model as part of its text."""
        own = {"timings_per_token": True, "return_progress": True, "reasoning_format": "none"}
        return Call(path(request), standard_body(request, self._model, EXTENSIONS) | own)

    def reader(self, request_id: str, clock: Clock) -> LlamaCppReader:
        """A reader that makes a round of each change of the counters."""
        return LlamaCppReader(ReplyStream(request_id, clock))


class LlamaCppReader:
    """Makes rounds of chunks and counters.

    A round is held until as many tokens have come as it emitted: that is at once, since they are sent together.
    """

    def __init__(self, stream: ReplyStream) -> None:
        self._stream = stream
        self._prefilled_s = 0.0
        self._drafted = self._accepted = 0
        """The counters as of the last chunk."""
        self._predicted = 0
        """Tokens of the reply as of the last chunk."""
        self._step: Step | None = None
        """What the server said of the round under way; None between rounds."""
        self._pieces: list[str] = []

    @property
    def finished(self) -> Finished | None:
        """The end, once the server has told it."""
        return self._stream.finished

    def read(self, values: dict[str, Any]) -> Iterator[Event]:
        """The rounds that this chunk completes."""
        chunk = read_chunk(values)
        timings = values.get("timings")
        yield from self._prefilled(values.get("prompt_progress"))
        text = self._stream.text_of(chunk)
        if text or chunk.tokens is not None:
            known = count(timings, "prompt_n"), count(timings, "cache_n")
            yield from self._stream.admit((known[0] or 0) + (known[1] or 0), known[1] or 0)
            yield from self._count(timings, text)
        self._stream.finish(chunk.reason)
        if chunk.tokens is not None:
            yield from self.close()
            counted = count(timings, "predicted_n") is not None
            drafted, accepted = (self._drafted, self._accepted) if counted else (None, None)
            yield self._stream.totals(chunk, drafted=drafted, accepted=accepted)

    def close(self) -> Iterator[Event]:
        """The round under way, as far as it has come."""
        if self._step is not None and self._pieces:
            yield self._stream.round(self._step, self._pieces)
        self._step, self._pieces = None, []

    def _prefilled(self, progress: object) -> Iterator[Event]:
        total = count(progress, "total")
        if total is None or not isinstance(progress, Mapping):
            return
        yield from self._stream.admit(total, count(progress, "cache") or 0)
        seconds = (count(progress, "time_ms") or 0) / 1000
        done, spent = count(progress, "processed") or 0, max(seconds - self._prefilled_s, 0.0)
        self._prefilled_s = seconds
        yield Prefilled(self._stream.request_id, done, total, spent, self._stream.clock())

    def _count(self, timings: object, text: str) -> Iterator[Event]:
        """Put the text where the counters say that it belongs."""
        predicted = count(timings, "predicted_n")
        if predicted is None:  # without the counters nothing is known of a token
            yield from self._stream.unknown(text, (), None)
            return
        drafted, accepted = count(timings, "draft_n") or 0, count(timings, "draft_n_accepted") or 0
        new = predicted - self._predicted
        begins = drafted > self._drafted
        if begins:
            yield from self.close()
            more = min(drafted - self._drafted, MOST_DRAFTED)
            self._step = Step(more, min(max(accepted - self._accepted, 0), more))
            if new > self._step.accepted:  # this version counts a whole round at once
                new = 1
        self._drafted, self._accepted, self._predicted = drafted, accepted, predicted
        silent = min(max(new - bool(text), 0), MOST_DRAFTED)
        """Tokens before this one for which no chunk was sent."""
        for piece in (*[""] * silent, *([text] if text else [])):
            if self._step is None:
                self._step = Step(0, 0)
            self._pieces.append(piece)
            if len(self._pieces) > self._step.accepted:
                yield from self.close()
