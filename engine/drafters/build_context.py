"""What drafters are built from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.tree import BRANCHES
from specchat.engine.drafters.datastore import Datastore
from specchat.engine.models.packed.load import Model

MOST_MODELS = BRANCHES
"""Maximum number of draft models that can be merged."""


class DraftPart(Protocol):
    """A draft that is not a model: a head, tables, embeddings."""

    @property
    def name(self) -> str:
        """For display."""

    @property
    def weight_bytes(self) -> int:
        """Memory of its weights."""

    @property
    def taps(self) -> tuple[int, ...]:
        """Depths of the target's hidden states that it reads: 0 the embeddings, the last one normed."""


@dataclass(slots=True)
class BuildContext:
    """Loaded models and parts of an engine, which `build(context, name)` of a drafter's module takes."""

    model: Model
    """The target."""
    target: Backend
    datastore: Datastore
    draft_models: Sequence[tuple[str, Backend]] = ()
    """Names and runners of draft models."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """Loaded parts of drafters by kind (`engine.registry.PARTS`)."""
    prefill_chunk: int = 256
    """Prompt tokens that a draft model reads in one pass."""
    drafters: Mapping[str, Any] = field(default_factory=dict)
    """All available drafters by name; drafters that combine others look them up here."""
    members: Sequence[Any] = ()
    """Draft models with what their drafters share (`engine.drafters.draft_model.members`); empty until one is built."""

    @property
    def never(self) -> frozenset[int]:
        """Tokens that are not drafted from text: turn marks of the chat template, which no reply contains."""
        return frozenset(self.model.tokenizer.all_special_ids) - self.model.eos_ids
