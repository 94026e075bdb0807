"""What a server says of itself before the first request: its models, and what else can be asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specchat.app.sources.observed import OBSERVED
from specchat.app.sources.servers.server import Ask
from specchat.engine import EngineError, Ready

SHOWN = 8
"""Models that a sentence names."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The answer to `GET /v1/models`, and a way to ask more."""

    url: str
    models: Sequence[Mapping[str, Any]]
    wanted: str | None
    """The model that was asked for; None takes the first."""
    ask: Ask

    def owned_by(self, owner: str) -> bool:
        """Whether the server names this owner of its models."""
        return self.models[0].get("owned_by") == owner

    def model(self, usual: str | None = None) -> str:
        """The name of the model to ask: the one that was asked for, else the usual one, else the first.

        Raises:
            EngineError: there is no such model.
        """
        names = [str(model["id"]) for model in self.models]
        if self.wanted is None:
            return usual if usual in names else names[0]
        if self.wanted not in names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            raise EngineError(f"{self.url} has no model {self.wanted}: it has {', '.join(names[:SHOWN])}{more}")
        return self.wanted

    def entry(self, name: str) -> Mapping[str, Any]:
        """What is listed of a model."""
        return next(model for model in self.models if model["id"] == name)


def observed_ready(server: str, model: str, *, context: int | None = None, slots: int | None = None) -> Ready:
    """What is known of a model at another server."""
    return Ready(
        target=model,
        draft=None,
        drafters=(OBSERVED,),
        device="",
        device_name="",
        dtype="",
        context=context or 0,
        slots=slots or 0,
        weight_bytes=0,
        cache_bytes=0,
        at=0.0,
        observed=server,
    )
