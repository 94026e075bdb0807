"""The line of a search hit in a message that is wrapped or rendered as Markdown."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from specchat.app.storage.search_index import BEGIN, END
from specchat.app.ui.rendering.block import Block
from specchat.app.ui.rendering.styles import TranscriptStyles


@dataclass(frozen=True, slots=True)
class FoundWord:
    """One occurrence of a word in a text."""

    word: str
    before: int
    """Number of occurrences before it."""


def found_word(excerpt: str, text: str) -> FoundWord | None:
    """The first match of a search excerpt, as an occurrence in its text; None if the text lacks it."""
    first, begins, rest = excerpt.partition(BEGIN)
    if not begins:
        return None
    plain = f"{first}{rest}".replace(BEGIN, "").replace(END, "")
    cut = plain.startswith("…") and not text.startswith("…")
    at = text.find(plain.removeprefix("…").removesuffix("…") if cut else plain.removesuffix("…"))
    if at < 0:
        return None
    word = rest.partition(END)[0].casefold()
    return FoundWord(word, text[: at + len(first) - cut].casefold().count(word))


def line_of_word(found: FoundWord, block: Block, styles: TranscriptStyles) -> int:
    """The line of the word in a block, or of the nearest occurrence before it; 0 without any."""
    text, starts = "", []
    for y in range(block.height):
        starts.append(len(text))
        line, joint = block.plain(y, 0, block.width, styles)
        text += f"{line}{joint}".casefold()
    at, last = -1, 0
    for _ in range(found.before + 1):
        at = text.find(found.word, at + 1)
        if at < 0:
            break
        last = at
    return max(bisect_right(starts, last) - 1, 0)
