"""llama.cpp's server: counters of drafted tokens in every chunk give each token's fate while it streams.

Source: ggml-org/llama.cpp, `tools/server/server-task.cpp` (`result_timings::to_json`, which leaves `draft_n` out while
it is 0) and `tools/server/server-context.cpp` (`draft_n` and `draft_n_accepted` rise when a pass has judged a draft,
then its tokens are sent one by one; no chunk is sent for a token that ends inside a character or might begin a stop
string). `GET /props` is in `tools/server/README.md`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from specchat.app.sources.servers import protocol
from specchat.engine import MOST_DRAFTED, Event, Prefilled, Request, Step

_OPTIONS = {"timings_per_token": True, "return_progress": True, "reasoning_format": "none"}
"""Counters in every chunk, and thinking as part of the text."""


def find_llama_cpp(listing: protocol.Listing) -> protocol.Server | None:
    """The server, if it has `/props`. Its model's name is a file path, unless it was started with another name."""
    props = listing.ask("/props", None) if listing.owned_by("llamacpp") else None
    if not isinstance(props, Mapping):
        return None
    usual = props.get("default_generation_settings")
    context, slots = protocol.count(usual, "n_ctx"), protocol.count(props, "total_slots")
    model = listing.model()
    ready = protocol.observed_ready("llama.cpp", re.split(r"[/\\]", model)[-1] or model, context=context, slots=slots)

    def call(request: Request, ask: protocol.Ask) -> protocol.Call:  # noqa: ARG001
        last = request.sampling.dry_penalty_last_n
        scanned = {"dry_penalty_last_n": context if last < 0 else last}  # some versions refuse -1, the whole context
        body = protocol.standard_body(request, model, "repeat_penalty", dry=True)
        return protocol.Call(protocol.path(request), body | scanned | _OPTIONS)

    return protocol.Server(ready, call, LlamaCppReader)


class LlamaCppReader(protocol.Reader):
    """Makes rounds of chunks and counters.

    A round is held until all its tokens have arrived, which is immediately, since they are sent together.
    """

    def __init__(self, request_id: str, clock: protocol.Clock) -> None:
        super().__init__(request_id, clock)
        self._prefilled_s = 0.0
        self._drafted = self._accepted = 0
        """The counters as of the last chunk."""
        self._predicted = 0
        """Tokens of the reply as of the last chunk."""
        self._step: Step | None = None
        """Counts of the current round; None between rounds."""
        self._pieces: list[str] = []

    def read(self, values: dict[str, Any]) -> Iterator[Event]:
        """The rounds that this chunk completes."""
        chunk = self.parse(values)
        timings = values.get("timings")
        yield from self._progress(values.get("prompt_progress"))
        text = self.text_of(chunk)
        if text or chunk.called or chunk.tokens is not None:
            known = protocol.count(timings, "prompt_n"), protocol.count(timings, "cache_n")
            yield from self.admit((known[0] or 0) + (known[1] or 0), known[1] or 0)
            yield from self._count(timings, text)
        self.finish(chunk.reason)
        if chunk.tokens is not None:
            yield from self.close()
            counted = protocol.count(timings, "predicted_n") is not None
            drafted, accepted = (self._drafted, self._accepted) if counted else (None, None)
            yield self.totals(chunk, drafted=drafted, accepted=accepted)

    def close(self) -> Iterator[Event]:
        """The current round with the tokens so far."""
        if self._step is not None and self._pieces:
            yield self.round(self._step, self._pieces)
        self._step, self._pieces = None, []

    def _progress(self, progress: object) -> Iterator[Event]:
        total = protocol.count(progress, "total")
        if total is None or not isinstance(progress, Mapping):
            return
        yield from self.admit(total, protocol.count(progress, "cache") or 0)
        seconds = (protocol.count(progress, "time_ms") or 0) / 1000
        done, spent = protocol.count(progress, "processed") or 0, max(seconds - self._prefilled_s, 0.0)
        self._prefilled_s = seconds
        yield Prefilled(self.request_id, done, total, spent, self.clock())

    def _count(self, timings: object, text: str) -> Iterator[Event]:
        """Assign the text to rounds by the counters."""
        predicted = protocol.count(timings, "predicted_n")
        if predicted is None:  # no counters: fates are unknown
            yield from self.unknown(text, (), None)
            return
        drafted, accepted = protocol.count(timings, "draft_n") or 0, protocol.count(timings, "draft_n_accepted") or 0
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
