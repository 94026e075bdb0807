"""Textual's terminal driver for Linux and macOS; tolerates invalid input and hang-up."""

import asyncio
import os
import re
import selectors
import signal
import sys
from codecs import getincrementaldecoder
from contextlib import suppress
from typing import IO, Any, cast

from textual.drivers.linux_driver import LinuxDriver

from specchat.app.sanitize import without_controls
from specchat.app.ui.textual_internals import SYNC_END, SYNC_START, XTermParser

_POLL_S = 0.1
"""Interval after which a lone escape character counts as the key instead of the start of a sequence."""
_READ = 4096
_ENDINGS = (signal.SIGTERM, signal.SIGHUP)


class TerminalDriver(LinuxDriver):
    """Exits the app cleanly, with everything stored, on hang-up and on SIGTERM.

    The exit code is then 128 and the signal's number, as shells have it.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # stdout is a terminal (`need_terminal`), stderr, which Textual draws on, may be a file.
        self._file: Any = _Output(cast("IO[str]", sys.__stdout__))
        self._frame: list[str] = []
        """The written part of an unfinished frame."""

    def write(self, data: str) -> None:
        """Write. A frame goes to the writing thread at its end: each of its three parts would wake that thread."""
        if self._frame or data == SYNC_START:
            self._frame.append(data)
            if data != SYNC_END:
                return
            data = "".join(self._frame)
            self._frame.clear()
        super().write(data)

    def start_application_mode(self) -> None:
        """Set up the terminal and the signal handlers."""
        super().start_application_mode()  # type: ignore[no-untyped-call]
        loop = asyncio.get_running_loop()
        for number in _ENDINGS:
            loop.add_signal_handler(number, self._leave, number)

    def run_input_thread(self) -> None:
        """Read keys and pastes until the driver ends; runs in a separate thread."""
        decoder, parser = InputDecoder(), XTermParser()
        with selectors.SelectSelector() as selector:  # the others know no terminals on macOS
            selector.register(self.fileno, selectors.EVENT_READ)
            typed_before = bool(selector.select(0))
            while not self.exit_event.is_set():
                if selector.select(_POLL_S):
                    data = self._read()
                    if typed_before:  # while the terminal still edited lines, and made line feeds of enter
                        data, typed_before = re.sub(rb"\n\Z", b"\r", data), False
                    if not data:
                        self._loop.call_soon_threadsafe(self._leave, signal.SIGHUP)
                        return
                    if text := decoder.feed(data):  # an empty one would end the parser
                        for message in parser.feed(text):
                            self.process_message(message)
                for message in parser.tick():
                    self.process_message(message)

    def _read(self) -> bytes:
        """Typed bytes; empty once the terminal has gone."""
        try:
            return os.read(self.fileno, _READ)
        except OSError:
            return b""

    def _leave(self, number: int) -> None:
        self._app.exit(return_code=128 + number)


class _Output:
    """Output stream of the driver. After a hang-up, output is discarded.

    An exception would end Textual's writing thread, and the app would wait for it forever.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, unless the terminal has gone."""
        with suppress(OSError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        with suppress(OSError):
            self._stream.flush()

    def fileno(self) -> int:
        """The file descriptor."""
        return self._stream.fileno()


PASTE_START, PASTE_END = "\x1b[200~", "\x1b[201~"
"""Bracketed paste, as xterm and all others mark it."""
_ALT_DIGIT = re.compile("\x1b([1-9])")


class InputDecoder:
    """Decodes a stream that arrives in pieces of any size.

    Between the marks of a paste, control characters other than tab and line ends are dropped. A parser of key
    sequences would take an escape character there for the beginning of a key, and hand that on before the text.
    """

    def __init__(self) -> None:
        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._pasting = False
        self._passed = ""
        """Outside of a paste: the end of what was given, which may be the beginning of `PASTE_START`."""
        self._held = ""
        """Within a paste: the beginning of what may become `PASTE_END`."""

    def feed(self, data: bytes) -> str:
        """The text of the next bytes; what may be half a character or half a closing mark comes with a later call."""
        text, out = self._decode(data), list[str]()
        while text:
            if self._pasting:
                pasted, mark, text = (self._held + text).partition(PASTE_END)
                half = 0 if mark else _half_mark(pasted)
                pasted, self._held = pasted[: len(pasted) - half], pasted[len(pasted) - half :]
                self._pasting = not mark
                out += [without_controls(pasted), mark]
            else:
                before = self._passed
                keys, mark, rest = (before + text).partition(PASTE_START)
                # Alt and a digit in kitty's way: Textual takes them for what Option types on a Mac, such as ™.
                out.append(_ALT_DIGIT.sub(lambda digit: f"\x1b[{ord(digit[1])};3u", f"{keys}{mark}"[len(before) :]))
                self._pasting, self._passed = bool(mark), "" if mark else keys[1 - len(PASTE_START) :]
                text = rest
        return "".join(out)


def _half_mark(text: str) -> int:
    """How many characters at the end of the text may be the beginning of `PASTE_END`."""
    return next((n for n in range(len(PASTE_END) - 1, 0, -1) if text.endswith(PASTE_END[:n])), 0)
