"""Titles of chats: from the first prompt, from what the model wrote as one, and of forks."""

import re
from collections.abc import Collection
from itertools import count

from specchat.app.sanitize import clean_prompt

TITLE_LENGTH = 48
MOST_WORDS = 8
TITLE_PROMPT = "What is this conversation about? Answer with a title of two to six words, in its language."
TITLE_BEGIN, TITLE_ENDS = 'Title: "', ('"', "\n")
"""How the reply to it begins, so that small models write no preface; and what ends it."""
_FIRST = re.compile(r"(?<=\w{3}[.?!])\s+(?=[^\W\d_])|\n\s*\n|:\s*\n")
"""Ends of a sentence that another one follows, of a paragraph, and of a line that announces others."""
_GREETING = re.compile(
    r"(?i)^(?:(?:(?:hi|hello|hey)\s*[,.!]|please|(?:can|could|would|will) you|help me)(?!\w)[\s,.!]*)+(?=\w)"
)
_FORK = r" \(fork(?: \d+)?\)"
_DISTINCTION = re.compile(rf"(?:{_FORK}| · [^·]+)$")


def title_of(prompt: str) -> str:
    """A title for a chat that starts with this prompt: its first sentence without a greeting, cut to some words."""
    asked = _GREETING.sub("", prompt.strip())
    words = " ".join(_FIRST.split(asked, maxsplit=1)[0].split())
    if asked != prompt.strip():
        words = words[:1].upper() + words[1:]
    return words if len(words) <= TITLE_LENGTH else words[: TITLE_LENGTH - 1].rstrip() + "…"


def written_title(text: str, prompt: str, answer: str, *, complete: bool) -> str:
    """The title in what a model wrote after the first exchange of a chat; empty if it is none.

    A title names something of the exchange, is not the prompt again, and has at most `MOST_WORDS` words: of a longer
    or incomplete one (not `complete`) the part before a colon counts.
    """
    title = " ".join(clean_prompt(text).split()).strip("\"'“”„«»*_#`. ")
    if not complete or len(title.split()) > MOST_WORDS:
        title, colon, _ = title.partition(": ")
        title = title if colon else ""
    said, words = f"{prompt} {answer}".casefold(), [word.strip(",;:!?'’") for word in title.casefold().split()]
    # Words of languages without spaces are longer than what they share with the exchange.
    fits = any((word[:4] if word.isascii() else word[:2]) in said for word in words if len(word) > 3 or word > "\x7f")
    repeats = title.casefold() in " ".join(prompt.casefold().split()) or title in TITLE_PROMPT
    usable = fits and not repeats and len(words) <= MOST_WORDS and len(title) <= TITLE_LENGTH
    return title if usable and not re.search(r"[<>{}|\[\]]|\.$", title) else ""


def split_title(title: str) -> tuple[str, str]:
    """A title without and with what tells a fork or a lane from the chat with the same prompt."""
    stem = _DISTINCTION.sub("", title)
    return stem, title[len(stem) :]


def fork_title(title: str, taken: Collection[str]) -> str:
    """The first free title for a fork of a chat."""
    stem = re.sub(f"{_FORK}$", "", title)
    names = (f"{stem} (fork{f' {number}' if number > 1 else ''})" for number in count(1))
    return next(name for name in names if name not in taken)
