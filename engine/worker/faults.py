"""Faults: what fails in a pass costs the requests that it fails for, not the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from specchat.engine.events import FinishReason
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.worker.open_requests import OpenRequests, sentence


class Faults:
    """Finds the rows that passes fail for, and ends them.

    Args:
        requests: whose rows these are.
    """

    def __init__(self, requests: OpenRequests) -> None:
        self._requests = requests
        self._failing = False
        """Whether the last pass failed and took its request with it: the next that fails is the engine's fault."""

    def run(self, work: Callable[[Sequence[SequenceState]], None], rows: Sequence[SequenceState]) -> None:
        """Do a pass for these rows; where it fails, for each alone, and those that fail again end.

        Raises:
            torch.OutOfMemoryError: which says nothing against a row.
            Exception: all rows failed, or nothing has got through since the last one did.
        """
        try:
            work(rows)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            self._blame(*_one_by_one(rows, error, work))

    def passed(self) -> None:
        """A round has got through."""
        self._failing = False

    def _blame(self, rows: Sequence[SequenceState], errors: Sequence[Exception]) -> None:
        for row, error in zip(rows, errors, strict=True):
            if self._failing:
                raise error
            self._failing = len(rows) == 1
            self._requests.finish(row, FinishReason.ERROR, sentence(error), keep=False)


def _one_by_one(
    rows: Sequence[SequenceState], error: Exception, work: Callable[[Sequence[SequenceState]], None]
) -> tuple[list[SequenceState], list[Exception]]:
    """The rows of a pass that failed, each in a pass of its own: those that fail again, and how."""
    if len(rows) == 1:
        return list(rows), [error]
    failed: list[SequenceState] = []
    errors: list[Exception] = []
    for row in rows:
        try:
            work([row])
        except torch.OutOfMemoryError:
            raise
        except Exception as own:
            failed.append(row)
            errors.append(own)
    if len(failed) == len(rows):
        raise error
    return failed, errors
