"""Names of control tokens in messages, such as <|im_end|>: they are encoded as text, so that they end no turn.

Only the chat template writes control tokens. A separator is put into such a name before the template is rendered, and
what lies between two control tokens is encoded without it, with every name as text.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from specchat.engine.sequence.template import default_template

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONTROL_FORM = re.compile(r"<\|.+\|>|<｜.+｜>", re.DOTALL)
"""Form of a control token, whatever its type."""
_ENDS = """
    <|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> <|eom_id|>
    <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> <｜end▁of▁sentence｜>
    [e~[ <|eot|> <|eom|> <|eos|> <|end_of_turn|> <|END_OF_TURN_TOKEN|> [|endofturn|] <|role_end|> <seed:eos>
    <|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame> <|file_sep|>
"""
END_TEXTS = frozenset(_ENDS.split())
"""Texts of tokens that end a turn, a text or a file: llama.cpp's list (llama-vocab.cpp), and a few like them."""
_SEPARATOR = "\ufdd0"
"""A noncharacter of Unicode: no text contains it."""


class _Marks(NamedTuple):
    ids: frozenset[int]
    """The control tokens."""
    names: re.Pattern[str] | None
    """Pattern that finds their names; None without control tokens."""
    before: frozenset[str]
    """Names that take in the white space before them."""
    after: frozenset[str]
    """Names that take in the white space after them."""


def is_control(text: str, template: str) -> bool:
    """Whether a token of a vocabulary is a control token by its text, whatever its type.

    `</s>` is also a tag of HTML, and counts if the chat template writes it.
    """
    return bool(CONTROL_FORM.fullmatch(text)) or (text in END_TEXTS and (text != "</s>" or text in template))


def separate(value: Any, tokenizer: Any) -> Any:
    """A text, or lists and mappings with texts, with a separator in every name of a control token."""
    names = _marks_of(tokenizer).names
    if names is None:
        return value
    if isinstance(value, str):
        return names.sub(lambda found: found[0][0] + _SEPARATOR + found[0][1:], value)
    if isinstance(value, dict):
        return {key: separate(each, tokenizer) for key, each in value.items()}
    return [separate(each, tokenizer) for each in value] if isinstance(value, list) else value


def encode_separated(text: str, tokenizer: Any) -> list[int]:
    """Token ids of a prompt that a template wrote from values of `separate`, without separators."""
    marks = _marks_of(tokenizer)
    if _SEPARATOR not in text or marks.names is None:
        return list(tokenizer.encode(text, add_special_tokens=False))
    pieces = ["", *marks.names.split(text), ""]  # every second one is the name of a control token
    ids: list[int] = []
    usual: list[str] = []
    for before, piece, after in zip(pieces, pieces[1:], pieces[2:], strict=False):
        if _SEPARATOR not in piece:
            usual.append(piece)
            continue
        said = piece.replace(_SEPARATOR, "")
        said = said.lstrip() if before in marks.after else said
        said = said.rstrip() if after in marks.before else said
        backend = _as_text(tokenizer.backend_tokenizer, marks.ids)
        ids += tokenizer.encode("".join(usual), add_special_tokens=False)
        ids += backend.encode_batch_fast([said], add_special_tokens=False)[0].ids
        usual = []
    return ids + list(tokenizer.encode("".join(usual), add_special_tokens=False))


def _marks_of(tokenizer: Any) -> _Marks:
    rows, template = getattr(tokenizer, "rows", None), default_template(tokenizer.chat_template)
    return _marks(tokenizer.backend_tokenizer, rows, template)


@lru_cache(maxsize=4)
def _marks(backend: Tokenizer, rows: int | None, template: str) -> _Marks:
    """Control tokens of a model with this number of tokens; names of others stay, and the prompt is refused."""
    control = {
        token: added
        for token, added in backend.get_added_tokens_decoder().items()
        if (added.special or is_control(added.content, template)) and (rows is None or token < rows)
    }
    names = sorted((each.content for each in control.values() if len(each.content) > 1), key=len, reverse=True)
    return _Marks(
        frozenset(control),
        re.compile(f"({'|'.join(map(re.escape, names))})") if names else None,
        frozenset(each.content for each in control.values() if each.lstrip),
        frozenset(each.content for each in control.values() if each.rstrip),
    )


@lru_cache(maxsize=2)
def _as_text(backend: Tokenizer, control: frozenset[int]) -> Tokenizer:
    """A copy of a tokenizer that encodes names of control tokens as text, as if it followed such a token."""
    content = json.loads(backend.to_str().replace('"prepend_scheme":"first"', '"prepend_scheme":"never"'))
    for added in content["added_tokens"]:
        added["special"] = added["special"] or added["id"] in control
    copy = type(backend).from_str(json.dumps(content))
    copy.encode_special_tokens = True
    return copy
