"""Bytes from the terminal as text: broken UTF-8 is replaced, and a paste carries no control characters."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder

from specchat.app.sanitize import without_controls

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
            text = self._paste(text, out) if self._pasting else self._keys(text, out)
        return "".join(out)

    def _keys(self, text: str, out: list[str]) -> str:
        """Pass on everything up to the start of a paste; gives the rest."""
        before = self._passed
        found = (before + text).find(PASTE_START)
        if found < 0:
            out.append(_alt_digits(text))
            self._passed = (before + text)[1 - len(PASTE_START) :]
            return ""
        end = found + len(PASTE_START) - len(before)
        out.append(_alt_digits(text[:end]))
        self._pasting, self._passed = True, ""
        return text[end:]

    def _paste(self, text: str, out: list[str]) -> str:
        """Pass on the paste without its control characters; gives what stands behind its end."""
        text, self._held = self._held + text, ""
        pasted, mark, rest = text.partition(PASTE_END)
        if mark:
            self._pasting = False
        else:
            half = _half_mark(pasted)
            pasted, self._held = pasted[: len(pasted) - half], pasted[len(pasted) - half :]
        out += [without_controls(pasted), mark]
        return rest


def _alt_digits(text: str) -> str:
    """Alt and a digit in kitty's way: Textual takes them for what Option types on a Mac, such as ™."""
    return _ALT_DIGIT.sub(lambda match: f"\x1b[{ord(match[1])};3u", text)


def _half_mark(text: str) -> int:
    """How many characters at the end of the text may be the beginning of `PASTE_END`."""
    return next((n for n in range(len(PASTE_END) - 1, 0, -1) if text.endswith(PASTE_END[:n])), 0)
