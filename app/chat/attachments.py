"""What of a prompt's attachments the model gets, and what stands for them where the prompt is shown."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from itertools import count
from pathlib import Path

from specchat.app.chat.text_file import read_text_file
from specchat.app.storage.attachments import FILE, PASTE, Attachment

LONG_PASTE_LINES = 40
LONG_PASTE = 4_000
"""Lines, or characters, from which on a sign stands for what was pasted."""
_FENCE = re.compile("`{3,}")


def file_attachment(name: str, path: Path) -> Attachment:
    """A text file, read now.

    Raises:
        UsageError: it cannot be read, is no text, or is too long.
    """
    return Attachment(FILE, name, read_text_file(path, name), path=str(path.absolute()))


def paste_attachment(text: str, taken: Container[str]) -> Attachment:
    """A paste, with a sign for it that is none of those taken."""
    lines = text.count("\n") + (not text.endswith("\n"))
    size = f"{lines:,} line{'s' if lines > 1 else ''} · {kilobytes(text)}"
    numbered = (f"[pasted {size}{f' · {number}' if number > 1 else ''}]" for number in count(1))
    return Attachment(PASTE, next(sign for sign in numbered if sign not in taken), text)


def is_long(text: str) -> bool:
    """Whether a paste would fill the composer."""
    return len(text) >= LONG_PASTE or text.count("\n") >= LONG_PASTE_LINES


def label(attachment: Attachment) -> str:
    """What it is called on screen, and how long it is."""
    tokens = "" if attachment.tokens is None else f" · {attachment.tokens:,} tokens"
    if attachment.kind == PASTE:
        return attachment.name.strip("[]") + tokens
    return attachment.name + (tokens or f" · {kilobytes(attachment.text)}")


def kilobytes(text: str) -> str:
    """The size of a text in UTF-8."""
    size = len(text.encode("utf-8", "replace"))
    return f"{size:,} B" if size < 1_000 else f"{size / 1_000:,.0f} kB"


def content_of(prompt: str, attachments: Sequence[Attachment]) -> str:
    """What the model gets: each file as a named block, then the prompt, with every paste in the place of its sign."""
    pastes = {each.name: each.text for each in attachments if each.kind == PASTE}
    if pastes:
        signs = re.compile("|".join(map(re.escape, pastes)))
        prompt = signs.sub(lambda found: pastes[found[0]], prompt)
    blocks = [as_block(each) for each in attachments if each.kind == FILE]
    return "\n\n".join([*blocks, prompt] if prompt else blocks)


def as_block(attachment: Attachment) -> str:
    """A text between fences that it does not have itself, under its name."""
    longest = max((len(fence) for fence in _FENCE.findall(attachment.text)), default=2)
    fence = "`" * max(longest + 1, 3)
    text = attachment.text.strip("\n")
    return f"{attachment.name}:\n{fence}\n{text}\n{fence}"
