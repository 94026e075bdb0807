"""Any server of the OpenAI protocol, and LM Studio, which reports counts of drafted tokens at the end of a reply.

Sources: the API reference of OpenAI, "Chat Completions", `stream_options.include_usage`; LM Studio's documentation,
release note of 0.3.10 (`stats.total_draft_tokens_count`, `stats.accepted_draft_tokens_count`, in later versions in
`usage`) and "REST API v0" (`GET /api/v0/models`: `type`, `state`, `max_context_length`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specchat.app.sources.servers.protocol import count, read_chunk
from specchat.app.sources.servers.server import Listing, ObservedReader, ObservedServer, observed_ready
from specchat.engine import Event

_EXTENSIONS = {"top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repeat_penalty"}
_DRAFTED, _ACCEPTED = "total_draft_tokens_count", "accepted_draft_tokens_count"


def find_lm_studio(listing: Listing) -> ObservedServer | None:
    """LM Studio, if the server has its REST API; the usual model is a loaded one."""
    said = listing.ask("/api/v0/models", None) if listing.owned_by("organization_owner") else None
    entries = said.get("data") if isinstance(said, Mapping) else None
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        return None
    language_models = [entry for entry in entries if entry.get("type") in ("llm", "vlm")]
    language_models.sort(key=lambda entry: entry.get("state") != "loaded")
    model = listing.model(language_models[0].get("id") if language_models else None)
    entry: Mapping[str, Any] = next((entry for entry in language_models if entry.get("id") == model), {})
    context = count(entry, "loaded_context_length", "max_context_length")
    return ObservedServer(observed_ready("LM Studio", model, context=context), model, PlainReader, _EXTENSIONS)


def find_plain(listing: Listing) -> ObservedServer:
    """Any server."""
    model = listing.model()
    return ObservedServer(observed_ready("OpenAI protocol", model), model, PlainReader)


class PlainReader(ObservedReader):
    """Makes one token of unknown fate of each chunk with text, and `Totals` of the counts at the end."""

    def read(self, values: dict[str, Any]) -> Iterator[Event]:
        """The tokens of this chunk, or the counts at the end."""
        chunk = read_chunk(values)
        text = self._stream.text_of(chunk)
        if text:
            yield from self._stream.admit(chunk.prompt_tokens)
            yield from self._stream.unknown(text, chunk.pieces, None)
        self._stream.finish(chunk.reason)
        if chunk.tokens is not None and not text:
            drafted, accepted = _draft_counts(values)
            passes = None if accepted is None else chunk.tokens - accepted  # each pass emits one token beyond the draft
            yield self._stream.totals(chunk, passes=passes, drafted=drafted, accepted=accepted)


def _draft_counts(values: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Drafted and accepted tokens, from `stats` or from `usage`; None if not reported."""
    places = values.get("stats"), values.get("usage")
    said = next((place for place in places if count(place, _DRAFTED) is not None), None)
    return count(said, _DRAFTED), count(said, _ACCEPTED)
