"""States of recurrent layers per slot, and the snapshots of them from which other prompts continue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

_SNAPSHOTS = 4
"""Snapshots per slot, the latest ones."""


class StateStore(ABC):
    """States of layers other than attention, per slot and length of its text.

    Args:
        slots: sequences that fit at once.
    """

    bytes: int
    """Memory of one slot, without snapshots."""

    def __init__(self, slots: int) -> None:
        self._snapshots: list[dict[int, Any]] = [{} for _ in range(slots)]
        """States at the ends of prompts and replies, by length, for each slot."""
        self._reading: list[int | None] = [None] * slots
        """End of the latest chunk of a prompt that is being read, for each slot."""

    @abstractmethod
    def at(self, slot: int, length: int) -> Any:
        """The state after `length` tokens; None if it is not known."""

    @abstractmethod
    def _latest(self, slot: int, length: int) -> int:
        """Longest length up to `length` at which the latest passes have left a state; 0 for none."""

    def reusable(self, slot: int, length: int) -> int:
        """Longest length up to `length` from which a slot's text can continue."""
        return max((self._latest(slot, length), *(n for n in self._snapshots[slot] if n <= length)))

    def take(self, slot: int, length: int) -> dict[int, Any]:
        """Snapshots of a slot up to `length`, and the latest state up to there, by length; none is written to later."""
        states = {n: state for n, state in self._snapshots[slot].items() if n <= length}
        last = self.reusable(slot, length)
        return states if last in states or not last else states | {last: self.at(slot, last)}

    def give(self, slot: int, states: Mapping[int, Any]) -> None:
        """Let a slot know these states and nothing else."""
        self._snapshots[slot] = dict(sorted(states.items())[-_SNAPSHOTS:])
        self._reading[slot] = None

    def _keep(self, slot: int, lengths: Iterable[int]) -> None:
        """Add the known ones of these states to the snapshots."""
        kept = {n: state for n in lengths if (state := self.at(slot, n)) is not None}
        self._snapshots[slot] = dict([*(self._snapshots[slot] | kept).items()][-_SNAPSHOTS:])

    def _drop_snapshots(self, slot: int, start: int) -> None:
        """Drop the snapshots after `start`, where a pass begins to overwrite the slot."""
        self._snapshots[slot] = {n: state for n, state in self._snapshots[slot].items() if n <= start}
