"""Names of control tokens in messages, such as <|im_end|>: they are encoded as text, so that they end no turn.

Only the chat template writes control tokens. A separator is put into such a name before the template is rendered, and
what lies between two control tokens is encoded without it, with every name as text.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SEPARATOR = "\ufdd0"
"""A noncharacter of Unicode: no text contains it."""


class _Marks(NamedTuple):
    ids: frozenset[int]
    """The control tokens."""
    names: re.Pattern[str] | None
    """Finds their names; None if there are none."""


def separate(value: Any, tokenizer: Any) -> Any:
    """A text, or lists and mappings with texts, with a separator in every name of a control token."""
    names = _marks(tokenizer.backend_tokenizer, getattr(tokenizer, "rows", None)).names
    if names is None:
        return value
    if isinstance(value, str):
        return names.sub(lambda found: found[0][0] + _SEPARATOR + found[0][1:], value)
    if isinstance(value, dict):
        return {key: separate(each, tokenizer) for key, each in value.items()}
    return [separate(each, tokenizer) for each in value] if isinstance(value, list) else value


def encode_separated(text: str, tokenizer: Any) -> list[int]:
    """Token ids of a prompt that a template wrote from values of `separate`, without separators."""
    if _SEPARATOR not in text:
        return list(tokenizer.encode(text, add_special_tokens=False))
    backend = tokenizer.backend_tokenizer
    # A batch of one: unlike `Tokenizer.encode` it lets other threads run.
    control = _marks(backend, getattr(tokenizer, "rows", None)).ids
    (encoding,) = backend.encode_batch([text], add_special_tokens=False)
    ids: list[int] = []
    between: list[int] = []
    begin = 0
    for token, (start, end) in zip([*encoding.ids, None], [*encoding.offsets, (len(text), 0)], strict=True):
        if token is not None and token not in control:
            between.append(token)
            continue
        if _SEPARATOR in (part := text[begin:start]):
            as_text = part.replace(_SEPARATOR, "")
            between = _as_text(backend).encode_batch_fast([as_text], add_special_tokens=False)[0].ids
        ids += between if token is None else [*between, token]
        between, begin = [], end
    return ids


@lru_cache(maxsize=4)
def _marks(backend: Tokenizer, rows: int | None) -> _Marks:
    """Control tokens of a model with this number of tokens; names of others stay, and the prompt is refused."""
    added = backend.get_added_tokens_decoder().items()
    control = {token: each.content for token, each in added if each.special and (rows is None or token < rows)}
    names = sorted((name for name in control.values() if len(name) > 1), key=len, reverse=True)
    return _Marks(frozenset(control), re.compile("|".join(map(re.escape, names))) if names else None)


@lru_cache(maxsize=2)
def _as_text(backend: Tokenizer) -> Tokenizer:
    """A copy of a tokenizer that encodes names of control tokens as text, as if it followed such a token."""
    copy = type(backend).from_str(backend.to_str().replace('"prepend_scheme":"first"', '"prepend_scheme":"never"'))
    copy.encode_special_tokens = True
    return copy
