"""What a model may write before a constrained answer, in Lark: thinking, and the marks of the model's format."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from specchat.engine.sequence.reply_formats import LAST, ReplyFormat
from specchat.engine.sequence.reply_parser import Tags

_UNTHINKING = (False, "none", "no_think", "disabled")
"""Values of `Request.thinking` that switch it off."""


def lead_of(form: ReplyFormat, prompt: Sequence[int], tokenizer: Any, thinking: bool | str | None) -> str:
    """Lark rules for all that precedes the rule `@answer`; empty for nothing.

    Args:
        form: of the model's replies.
        prompt: that is answered; it may have begun the thinking, or ended it.
        tokenizer: a `PlainTokenizer`.
        thinking: of the request.
    """
    backend, marks = tokenizer.backend_tokenizer, form.marks

    def rules(texts: Sequence[str]) -> str:
        """One of these marks: as a token where it is a control token, which no text matches."""
        ids = [backend.token_to_id(text) for text in texts]
        return "|".join(
            f"<[{token}]>" if token in form.control else json.dumps(text)
            for token, text in zip(ids, texts, strict=True)
        )

    if isinstance(marks, Tags):
        opening, closing, answer = f"({rules(marks.opening)})", f"({rules(marks.closing)}) SPACE", ""
        if marks.answer:
            answer = f"(({rules(marks.answer)}) SPACE)?"
        end = str(backend.decode(list(prompt[-LAST:]), skip_special_tokens=False)).rstrip()
        thinks = not end.endswith(marks.closing)
    elif form.whole:
        known = re.compile("|".join(map(re.escape, sorted(marks.marks, key=len, reverse=True))))
        opening, closing, answer = (known.sub(lambda mark: rules([mark[0]]), part) for part in marks.lead)
        thinks = bool(opening)
    else:
        return ""
    text = "TEXT"
    if isinstance(marks, Tags) and '"' in closing:
        words = "|".join(re.escape(mark) for mark in marks.closing).replace("/", "\\/")
        text, closing = "thought", "SPACE"
        lines = [f"thought[lazy]: /(?s:.*)({words})/"]
    else:
        lines = ["TEXT: /(?s:.*)/"]
    if form.parser(prompt, tokenizer).thinking:
        before = f"{text} {closing}"
    else:
        before = f"({opening} {text} {closing})?" if thinks and thinking not in _UNTHINKING else ""
    if not before and not answer:
        return ""
    return "\n".join([f"start: {before} {answer} @answer", *lines, "SPACE: /[ \\n]{0,4}/"])
