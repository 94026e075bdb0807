"""Texts that are sent along with a prompt: files, and long pastes."""

from __future__ import annotations

from dataclasses import dataclass

FILE, PASTE = "file", "paste"


@dataclass(frozen=True, slots=True)
class Attachment:
    """One text. In the prompt stands `@` and its name for a file, and the name alone for a paste."""

    kind: str
    """`FILE` or `PASTE`."""
    name: str
    """A file's path as it was typed; of a paste the sign that stands for it."""
    text: str
    """All of it, as the model gets it."""
    tokens: int | None = None
    """Tokens that it takes in a prompt; None where nobody has counted them."""
    path: str = ""
    """Where a file that is not sent yet is read again; empty for what stays as it is."""

    def is_same(self, other: Attachment) -> bool:
        """Whether it is the same text under the same name."""
        return (self.name, self.text) == (other.name, other.text)
