"""Reading text files of any encoding."""

from __future__ import annotations

import codecs
import re
from contextlib import suppress
from pathlib import Path

from specchat.app.errors import UsageError
from specchat.app.sanitize import clean_prompt

LONGEST_FILE = 4 << 20
"""Bytes of a file that is attached: more than most contexts hold, and a model's tokenizer takes a second for it."""
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before that of UTF-16, which it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_PDF = b"%PDF-"
_NO_TEXT = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
"""Control characters that texts do not have; escape sequences in logs are none of them."""
_CONTROLS_SHARE = 0.01
_COMMONEST = ("cp1252", "cp1251")
_ALIKE = 0.1
"""Difference of the detector's coherence that says little about a short text."""


def read_text_file(path: Path, name: str) -> str:
    """The text of a file, without control characters; `name` is what sentences call it.

    Raises:
        UsageError: it is not there, cannot be read, is no text, or is too long.
    """
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{name} is no file: name a text file")
        if path.stat().st_size > LONGEST_FILE:
            raise UsageError(f"{name} is longer than {LONGEST_FILE >> 20} MiB: give a part of it")
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"{name} cannot be read: {reason}") from None
    text = decoded(data)
    if text is None:
        raise UsageError(f"{name} is no text file: only texts can be given to the model")
    return clean_prompt(text)


def decoded(data: bytes) -> str | None:
    """Bytes as text, by their byte order mark, as UTF-8, as UTF-16 without a mark, or as whatever they look like.

    None if they are no text.
    """
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            with suppress(UnicodeError):
                return _if_text(data.decode(encoding))
            return None
    if data.startswith(_PDF):
        return None
    with suppress(UnicodeError):
        text = data.decode("utf-8")
        if _if_text(text) is not None or not _is_utf_16(data):
            return _if_text(text)
    return _if_text(_detected(data))


def _is_utf_16(data: bytes) -> bool:
    """Whether it may be Latin script in UTF-16 without a mark: every other byte is zero."""
    return b"\0\0" not in data and len(data) % 2 == 0 and len(data) == 2 * data.count(b"\0")


def _detected(data: bytes) -> str | None:
    """What a detector takes it for; of what looks equally clean and reads much the same, the commonest."""
    from charset_normalizer import from_bytes  # tens of milliseconds that a start need not wait for

    found = from_bytes(data)
    best = found.best()
    if best is None:
        return None
    near = [one for one in found if one.chaos == best.chaos and one.coherence > best.coherence - _ALIKE]
    for encoding in _COMMONEST:
        if any(encoding in one.could_be_from_charset for one in near):
            return data.decode(encoding)
    return str(best)


def _if_text(text: str | None) -> str | None:
    if text is None:
        return None
    return text if len(_NO_TEXT.findall(text)) <= _CONTROLS_SHARE * len(text) else None
