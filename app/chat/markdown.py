"""Parsing of replies as Markdown: CommonMark with tables, strikethrough and bare links. LaTeX and HTML stay text."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_BRACKETS = {"\\(": "\\)", "\\[": "\\]"}
"""Opening and closing delimiters of LaTeX."""


class Part(NamedTuple):
    """A top-level block of a text."""

    source: str
    """Its lines, up to the next part."""
    tokens: Sequence[Token]
    """Its parsed tokens."""

    @property
    def codes(self) -> int:
        """Number of code blocks in it."""
        return sum(map(_is_code, self.tokens))


def parts(text: str) -> list[Part]:
    """The top-level blocks of a Markdown text in order; their sources make up the text."""
    lines = _LINE.findall(text)
    blocks = list(_blocks(_parser().parse(text)))
    starts = [0, *((block[0].map or [0])[0] for block in blocks[1:]), len(lines)]
    return [Part("".join(lines[starts[n] : starts[n + 1]]), block) for n, block in enumerate(blocks)]


def code_blocks(text: str) -> list[tuple[str, str]]:
    """Language and text of each code block of a Markdown text, in order."""
    codes = filter(_is_code, _parser().parse(text))
    return [(token.info.split(" ")[0].strip(), token.content.rstrip("\n")) for token in codes]


def links(text: str) -> list[str]:
    """Addresses of the links and images of a Markdown text, in order, each once."""
    inline = [token for block in _parser().parse(text) for token in block.children or ()]
    found = (token.attrs.get("href") or token.attrs.get("src") for token in inline)
    return list(dict.fromkeys(str(address) for address in found if address))


def _is_code(token: Token) -> bool:
    return token.type in ("fence", "code_block")


def _blocks(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """The tokens of each top-level block."""
    first = 0
    for number, token in enumerate(tokens):
        if token.level == 0 and token.nesting <= 0:
            yield tokens[first : number + 1]
            first = number + 1


@cache
def _parser() -> MarkdownIt:
    """The parser, imported here to keep the start fast."""
    from markdown_it import MarkdownIt
    from mdit_py_plugins.dollarmath import dollarmath_plugin

    parser = MarkdownIt("commonmark", {"html": False, "linkify": True})
    parser.enable(["strikethrough", "table", "linkify"])
    assert parser.linkify is not None
    parser.linkify.set({"fuzzy_link": False, "fuzzy_email": False})  # otherwise main.py would become a link
    dollarmath_plugin(parser, allow_space=False, allow_digits=False, allow_labels=False, double_inline=True)
    parser.inline.ruler.before("escape", "latex", _latex)
    return parser


def _latex(state: StateInline, silent: bool) -> bool:
    r"""LaTeX between \( and \), or \[ and \]: Markdown would take the backslashes away."""
    start = state.pos
    closing = _BRACKETS.get(state.src[start : start + 2])
    end = -1 if closing is None else state.src.find(closing, start + 2)
    if end < 0:
        return False
    if not silent:
        state.push("math_inline", "math", 0).content = state.src[start : end + 2]
    state.pos = end + 2
    return True
