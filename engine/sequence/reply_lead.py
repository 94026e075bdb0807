"""What a model may write before a constrained answer, in Lark: thinking, and the marks of the model's format."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from specchat.engine.sequence.reply_formats import LAST, ReplyFormat
from specchat.engine.sequence.reply_parser import Channels, Tags

_UNTHINKING = (False, "none", "no_think", "disabled")
"""Values of `Request.thinking` that switch it off."""
Literal = Callable[[str], str]
"""A mark in Lark."""


class _Parts(NamedTuple):
    """Parts of a lead, in Lark but for `closing`."""

    opening: str
    closing: Sequence[str]
    """The marks that may end the thinking."""
    rest: str
    """What follows them."""
    answer: str


def lead_of(
    form: ReplyFormat,
    prompt: Sequence[int],
    tokenizer: Any,
    thinking: bool | str | None,
    is_control: Callable[[int], bool],
) -> str:
    """Lark rules for all that precedes the rule `@answer`; empty for nothing.

    Args:
        form: of the model's replies.
        prompt: that is answered; it may have begun the thinking, or ended it.
        tokenizer: a `PlainTokenizer`.
        thinking: of the request.
        is_control: whether llguidance takes a token for one that no text matches.
    """
    backend, marks = tokenizer.backend_tokenizer, form.marks

    def literal(text: str) -> str:
        token = backend.token_to_id(text)
        return json.dumps(text) if token is None or not is_control(token) else f"<[{token}]>"

    if isinstance(marks, Tags):
        parts = _of_tags(marks, literal)
    else:
        known = form.whole and all(backend.token_to_id(mark) is not None for mark in _marks_in(marks.lead[0]))
        if not known or not marks.lead[0]:
            return ""
        parts = _of_channels(marks, literal)
    closing = [*map(literal, parts.closing)]
    tokens = [each for each in closing if not each.startswith('"')]
    end = str(backend.decode(list(prompt[-LAST:]), skip_special_tokens=False)).rstrip()
    if form.parser(prompt, tokenizer).thinking:  # some models write the opening mark once more
        before = f"({parts.opening} SPACE)? thought {parts.rest}"
    elif end.endswith(tuple(parts.closing)) or thinking in _UNTHINKING:
        before = ""
    else:  # or the closing mark alone
        before = f"(SPACE ({parts.opening} thought | {'|'.join(closing)}) {parts.rest})?"
    if not before and not parts.answer:
        return ""
    if tokens:
        thought = f"thought: /(?s:.*)/ ({'|'.join(tokens)})"
    else:
        words = "|".join(map(re.escape, parts.closing)).replace("/", "\\/")
        thought = f"thought[lazy]: /(?s:.*)({words})/"
    return f"start: {before} {parts.answer} @answer\n{thought}\nSPACE: /[ \\n]{{0,4}}/"


def _of_tags(marks: Tags, literal: Literal) -> _Parts:
    opening, answer = ("|".join(map(literal, each)) for each in (marks.opening, marks.answer))
    return _Parts(f"({opening})", marks.closing, "SPACE", f"(({answer}) SPACE)?" if answer else "")


def _of_channels(marks: Channels, literal: Literal) -> _Parts:
    opening, closing, answer = marks.lead
    first, _, rest = closing.partition(" ")
    opening, rest, answer = (
        " ".join(literal(word) if word in marks.meaning else word for word in part.split())
        for part in (opening, rest, answer)
    )
    return _Parts(opening, (first,), rest, answer)


def _marks_in(part: str) -> list[str]:
    return [word for word in part.split() if word.startswith("<")]
