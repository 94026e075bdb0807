"""Drafted text that is no part of the reply, on one line: what has no letters of its own is a short sign."""

from __future__ import annotations

import re

from specchat.app.sanitize import escape_controls

SPACE, LINE_END, BEGIN, END, OTHER = "␣", "↵", "⊢", "⊣", "◇"
_LINE_END = re.compile(r"\n[ \t]*")
_SPECIAL = re.compile(r"<\|[^|<>\s]+\|>|</?s>|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>|\[/?INST\]")
"""Names that special tokens have in the vocabularies of the common families of models."""
_ENDS = re.compile(r"end|eos|eot|eom|</s>|/INST")
_BEGINS = re.compile(r"start|begin|bos|<s>|INST")


def draft_text(text: str) -> str:
    """The text of a drafted token as it is drawn.

    Special tokens are ⊢ (one that begins a text or a turn), ⊣ (one that ends it) or ◇, line ends are ↵ with what they
    are indented by, and space alone is ␣, since nobody would see it.
    """
    text = escape_controls(text)
    if not text.strip(" \t"):
        return SPACE if text else ""
    return _LINE_END.sub(LINE_END, _SPECIAL.sub(_sign, text))


def _sign(name: re.Match[str]) -> str:
    if _ENDS.search(name[0]):
        return END
    return BEGIN if _BEGINS.search(name[0]) else OTHER
