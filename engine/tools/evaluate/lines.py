"""Text of files and models on a line of a report."""

from __future__ import annotations


def one_line(text: str) -> str:
    """Text on one line, without anything that a terminal acts on."""
    return "".join(character if character.isprintable() else "␤" if character == "\n" else "·" for character in text)
