"""Drafters of an engine: available ones of the registry, each built by its module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from specchat.engine.decoding.drafter import Drafter
from specchat.engine.drafters.build_context import BuildContext
from specchat.engine.registry import DRAFTERS, Condition


class Drafters(Mapping[str, Drafter]):
    """The available drafters by name, best first; each is built when it is first looked up.

    Args:
        context: what they are built from.
    """

    def __init__(self, context: BuildContext) -> None:
        self._context = context
        context.drafters = self
        self._entries = {name: entry for name, entry in DRAFTERS.items() if _is_met(entry.condition, context)}
        self.built: dict[str, Drafter] = {}
        """The drafters that have been built."""
        self._warm = False
        self.step_seconds: dict[str, float] = {}
        """Seconds of a draft step for one row, by drafter; only of drafters that could be timed while warming up."""

    def build(self) -> None:
        """Build all that do not wait for a request."""
        for name, entry in self._entries.items():
            if not entry.on_request:
                self[name]

    def warm_up(self) -> None:
        """Warm up all that have been built; each drafter that is built later is warmed up when it is built."""
        self._warm = True
        for name, drafter in self.built.items():
            self._warm_up(name, drafter)

    def _warm_up(self, name: str, drafter: Drafter) -> None:
        seconds = drafter.warm_up()
        if seconds is not None:
            self.step_seconds[name] = seconds

    def __getitem__(self, name: str) -> Drafter:
        if name not in self.built:
            drafter: Drafter = import_module(self._entries[name].module).build(self._context, name)
            if self._warm:
                self._warm_up(name, drafter)
            self.built[name] = drafter
        return self.built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _is_met(condition: Condition, context: BuildContext) -> bool:
    """Whether what a drafter needs is loaded."""
    backends = [backend for _, backend in context.draft_models]
    return (
        (not condition.parts or any(part in context.parts for part in condition.parts))
        and len(backends) >= condition.models
        and (not condition.trees or backends[0].device.type == "cpu" or backends[0].capabilities.captured)
    )
