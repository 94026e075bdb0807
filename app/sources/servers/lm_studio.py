"""LM Studio: counts of drafted and accepted tokens at the end of a reply.

Source: LM Studio's documentation, release note of 0.3.10 (`stats.total_draft_tokens_count`,
`stats.accepted_draft_tokens_count`) and "REST API v0" (`GET /api/v0/models`: `type`, `state`, `max_context_length`).
The counts of drafts stand in `stats` or, in later versions, in `usage`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specchat.app.sources.servers.listing import Listing, observed_ready
from specchat.app.sources.servers.plain import PlainReader
from specchat.app.sources.servers.protocol import count, path, standard_body
from specchat.app.sources.servers.reply_stream import ReplyStream
from specchat.app.sources.servers.server import Ask, Call, Clock
from specchat.engine import Ready, Request

NAME = "LM Studio"
EXTENSIONS = {"top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repeat_penalty"}
DRAFTED, ACCEPTED = "total_draft_tokens_count", "accepted_draft_tokens_count"


class LMStudio:
    """An LM Studio server.

    Args:
        ready: its model.
    """

    def __init__(self, ready: Ready) -> None:
        self.ready = ready

    @classmethod
    def found(cls, listing: Listing) -> LMStudio | None:
        """The server, if it has an API of its own; the usual model is one that is loaded."""
        said = listing.ask("/api/v0/models", None) if listing.owned_by("organization_owner") else None
        entries = said.get("data") if isinstance(said, Mapping) else None
        if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
            return None
        speak = [entry for entry in entries if entry.get("type") in ("llm", "vlm")]
        speak.sort(key=lambda entry: entry.get("state") != "loaded")
        model = listing.model(speak[0].get("id") if speak else None)
        known: Mapping[str, Any] = next((entry for entry in speak if entry.get("id") == model), {})
        return cls(observed_ready(NAME, model, context=count(known, "loaded_context_length", "max_context_length")))

    def call(self, request: Request, ask: Ask) -> Call:  # noqa: ARG002
        """The request."""
        return Call(path(request), standard_body(request, self.ready.target, EXTENSIONS))

    def reader(self, request_id: str, clock: Clock) -> PlainReader:
        """A reader that learns sums at the end."""
        return PlainReader(ReplyStream(request_id, clock), _counts)


def _counts(values: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Drafted and accepted tokens, from `stats` or from `usage`."""
    places = values.get("stats"), values.get("usage")
    said = next((place for place in places if count(place, DRAFTED) is not None), None)
    return count(said, DRAFTED), count(said, ACCEPTED)
