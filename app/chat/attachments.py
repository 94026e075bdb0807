"""Attachments of a prompt: reading text files of any encoding, names on screen, and the text that the model gets."""

import codecs
import re
from collections.abc import Container, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

from specchat.app.errors import UsageError
from specchat.app.sanitize import clean_prompt
from specchat.app.storage.attachments import FILE, PASTE, Attachment

LONG_PASTE_LINES = 40
LONG_PASTE = 4_000
"""Number of lines, or characters, from which on a paste is shown as a placeholder."""
LONGEST_FILE = 4 << 20
"""Limit of attached files in bytes. Most contexts are smaller, and a tokenizer takes a second for it."""
_FENCE = re.compile("`{3,}")
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before the mark of UTF-16, with which it starts
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_PDF = b"%PDF-"
_NO_TEXT = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
"""Control characters that do not occur in texts; ESC does, in logs."""
_CONTROLS_SHARE = 0.01
_COMMONEST = ("cp1252", "cp1251")
_ALIKE = 0.1
"""Difference of the detector's coherence that is not significant for a short text."""


def file_attachment(name: str, path: Path) -> Attachment:
    """Read a text file as an attachment; errors as for `read_text_file`."""
    return Attachment(FILE, name, read_text_file(path, name), path=str(path.absolute()))


def paste_attachment(text: str, taken: Container[str]) -> Attachment:
    """A paste with a placeholder that is not among those taken."""
    lines = text.count("\n") + (not text.endswith("\n"))
    size = f"{lines:,} line{'s' if lines > 1 else ''} · {kilobytes(text)}"
    numbered = (f"[pasted {size}{f' · {number}' if number > 1 else ''}]" for number in count(1))
    return Attachment(PASTE, next(name for name in numbered if name not in taken), text)


def is_long(text: str) -> bool:
    """Whether a paste would fill the composer."""
    return len(text) >= LONG_PASTE or text.count("\n") >= LONG_PASTE_LINES


def label(attachment: Attachment) -> str:
    """Name and length on screen."""
    tokens = "" if attachment.tokens is None else f" · {attachment.tokens:,} tokens"
    if attachment.kind == PASTE:
        return attachment.name.strip("[]") + tokens
    return attachment.name + (tokens or f" · {kilobytes(attachment.text)}")


def kilobytes(text: str) -> str:
    """The size of a text in UTF-8."""
    size = len(text.encode("utf-8", "replace"))
    return f"{size:,} B" if size < 1_000 else f"{size / 1_000:,.0f} kB"


def content_of(prompt: str, attachments: Sequence[Attachment]) -> str:
    """The text for the model: each file as a named block, then the prompt with pastes for their placeholders."""
    pastes = {each.name: each.text for each in attachments if each.kind == PASTE}
    if pastes:
        names = re.compile("|".join(map(re.escape, pastes)))
        prompt = names.sub(lambda found: pastes[found[0]], prompt)
    blocks = [as_block(each) for each in attachments if each.kind == FILE]
    return "\n\n".join([*blocks, prompt] if prompt else blocks)


def as_block(attachment: Attachment) -> str:
    """A text under its name, between fences longer than any in the text."""
    longest = max((len(fence) for fence in _FENCE.findall(attachment.text)), default=2)
    fence = "`" * max(longest + 1, 3)
    text = attachment.text.strip("\n")
    return f"{attachment.name}:\n{fence}\n{text}\n{fence}"


def read_text_file(path: Path, name: str) -> str:
    """The text of a file without control characters; `name` is used in error messages.

    Raises:
        UsageError: it is missing, cannot be read, is not text, or is too long.
    """
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{name} is not a file: name a text file")
        if path.stat().st_size > LONGEST_FILE:
            raise UsageError(f"{name} is longer than {LONGEST_FILE >> 20} MiB: give a part of it")
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"{name} cannot be read: {reason}") from None
    return text_of(data, name)


def text_of(data: bytes, name: str) -> str:
    """What was read from a file as text without control characters; `name` is used in error messages.

    Raises:
        UsageError: it is not text.
    """
    text = decoded(data)
    if text is None:
        raise UsageError(f"{name} is not a text file: only text can be read")
    return clean_prompt(text)


def decoded(data: bytes) -> str | None:
    """Decode by byte order mark, as UTF-8, as UTF-16 without a mark, or by detection; None if it is not text."""
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            with suppress(UnicodeError):
                return _if_text(data.decode(encoding))
            return None
    if data.startswith(_PDF):
        return None
    with suppress(UnicodeError):
        text = _if_text(data.decode("utf-8"))
        if text is not None or not _is_utf_16(data):
            return text
    return _if_text(_detected(data))


def _is_utf_16(data: bytes) -> bool:
    """Whether it may be Latin script in UTF-16 without a mark: every other byte is zero."""
    return b"\0\0" not in data and len(data) % 2 == 0 and len(data) == 2 * data.count(b"\0")


def _detected(data: bytes) -> str | None:
    """Decode with the detected encoding; among equally likely ones, the commonest."""
    from charset_normalizer import from_bytes  # imported here to keep the start fast

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
    return text if text is not None and len(_NO_TEXT.findall(text)) <= _CONTROLS_SHARE * len(text) else None
