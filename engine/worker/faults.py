"""Failed passes: the rows that they fail for end, and the others continue."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from specchat.engine.device.device import is_device_error, is_shortage
from specchat.engine.errors import EngineError, first_line
from specchat.engine.sequence.sequence import SequenceState


def sentence(error: BaseException) -> str:
    """Message for a request that failed."""
    if isinstance(error, EngineError):
        return str(error)
    cause = f"{type(error).__name__}: {first_line(error)}"
    return f"this request failed on an internal error ({cause}): rephrase the prompt and send it again"


class Faults:
    """Isolates rows for which passes fail, and ends their requests.

    Args:
        finish: ends the request of a row, with a message about the error.
    """

    def __init__(self, finish: Callable[[SequenceState, str], None]) -> None:
        self._finish = finish
        self._failing = False
        """Whether a single row failed and no round succeeded since: another failure is the engine's."""

    def run(self, work: Callable[[Sequence[SequenceState]], None], rows: Sequence[SequenceState]) -> None:
        """Run a pass for these rows; if it fails, for each row alone. Rows that fail again end.

        Raises:
            torch.OutOfMemoryError: no row is at fault.
            EngineError: the GPU has failed.
            Exception: all rows failed, or no round succeeded since the last failure.
        """
        try:
            work(rows)
        except Exception as error:
            if is_shortage(error):
                raise torch.OutOfMemoryError(first_line(error)) from error
            if is_device_error(error):
                message = f"the GPU has failed ({first_line(error)}): start again, or with --device cpu"
                raise EngineError(message) from error
            self._blame(_one_by_one(rows, error, work))

    def passed(self) -> None:
        """A round has succeeded."""
        self._failing = False

    def _blame(self, failed: Sequence[tuple[SequenceState, Exception]]) -> None:
        for row, error in failed:
            if self._failing:
                raise error
            self._failing = len(failed) == 1
            self._finish(row, sentence(error))


def _one_by_one(
    rows: Sequence[SequenceState], error: Exception, work: Callable[[Sequence[SequenceState]], None]
) -> list[tuple[SequenceState, Exception]]:
    """Run each row of a failed pass alone; return the rows that fail again, with their errors."""
    if len(rows) == 1:
        return [(rows[0], error)]
    failed: list[tuple[SequenceState, Exception]] = []
    for row in rows:
        try:
            work([row])
        except torch.OutOfMemoryError:
            raise
        except Exception as own:
            failed.append((row, own))
    if len(failed) == len(rows):
        raise error
    return failed
