"""What drafters are built from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.drafter import Drafter
from specchat.engine.drafters.datastore import Datastore
from specchat.engine.models.load import LoadedModel
from specchat.engine.models.packed.load import PackedModel

Made = TypeVar("Made")


@dataclass(slots=True)
class BuildContext:
    """What drafters are built from."""

    model: LoadedModel | PackedModel
    """The target."""
    target: Backend
    datastore: Datastore
    draft_models: Sequence[tuple[str, Backend]] = ()
    """Names and runners of draft models."""
    parts: dict[str, Any] = field(default_factory=dict)
    """Loaded parts of drafters by kind: `head`, `tables`, `look_ahead`."""
    prefill_chunk: int = 256
    """Prompt tokens that a draft model reads in one pass."""
    drafters: Mapping[str, Drafter] = field(default_factory=dict)
    """All available drafters by name; drafters that combine others look them up here."""
    _shared: dict[str, Any] = field(default_factory=dict)

    @property
    def never(self) -> frozenset[int]:
        """Tokens that are not drafted from text: turn marks of the chat template, which no reply contains."""
        return frozenset(self.model.tokenizer.all_special_ids) - self.model.eos_ids

    def shared(self, name: str, make: Callable[[], Made]) -> Made:
        """An object that several drafters share, made once."""
        if name not in self._shared:
            self._shared[name] = make()
        made: Made = self._shared[name]
        return made
