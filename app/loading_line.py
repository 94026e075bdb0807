"""One line on a terminal that says what is being loaded and goes away afterwards."""

from __future__ import annotations

import shutil
from types import TracebackType
from typing import Self, TextIO

from app.sanitize import visible
from engine import Loading

_BACK_AND_CLEAR = "\r\x1b[K"


class LoadingLine:
    """Shows the newest `Loading`; writes nothing where the stream is no terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = ""

    def show(self, loading: Loading) -> None:
        """Replace the line."""
        if not self._stream.isatty():
            return
        share = "" if loading.fraction is None else f" {loading.fraction:.0%}"
        columns = shutil.get_terminal_size().columns
        line = visible(loading.text)[: columns - len(share) - 1] + share
        if line != self._shown:
            self._stream.write(_BACK_AND_CLEAR + line)
            self._stream.flush()
            self._shown = line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._shown:
            self._stream.write(_BACK_AND_CLEAR)
            self._stream.flush()
