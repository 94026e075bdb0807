"""Tokenizer of a model on the `tokenizers` library, and comparison of vocabularies.

Importing transformers, with its tokenizers, would take most of a start's time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from specchat.engine.errors import EngineError, check, errors_as
from specchat.engine.models.checkpoint import read_json
from specchat.engine.sequence.prompt import CONTROL_FORM, END_TEXTS, is_control
from specchat.engine.sequence.template import default_template

_MOST_STEPS, _MOST_GROWTH = 64, 4096
"""Limits of a tokenizer; published ones have up to ten steps, and one of them writes bytes as characters."""
FILE, TEMPLATE = "tokenizer.json", "chat_template.jinja"
FACTS = "specchat"
"""Key of tokenizer_config.json for facts about the tokens of a GGUF file."""
VERSION = 1
"""Version of the conversion of GGUF tokenizers; tokenizers of other versions are converted again."""


if TYPE_CHECKING:
    from tokenizers import Tokenizer


_NO_ENDS = (
    *(("<|end|>", "<|return|>", "<|call|>"), ("<|end|>", "<|flush|>", "<|calls|>")),
    *(("<|eom|>", "<|eot|>"), ("</s>", "<|tool_response>")),
)
"""Texts of which the first ends no turn if the vocabulary has the others: gpt-oss and Muse end each of their messages
so."""


class PlainTokenizer:
    """The part of transformers' fast tokenizer that the engine uses, with the same names.

    Args:
        backend: tokenizer of the `tokenizers` library.
        facts: result of `tokenizer_facts` for the tokenizer of transformers; none for a vocabulary alone.
    """

    def __init__(self, backend: Tokenizer, facts: Mapping[str, Any] = MappingProxyType({})) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend_tokenizer, self.facts = backend, facts
        self.chat_template: str | None = facts.get("chat_template")
        self.special_tokens_map: dict[str, str] = facts.get("special_tokens", {})
        self._same = dict(map(tuple, facts.get("same", ())))
        self._unused = frozenset(facts.get("unused", ()))
        self._added = backend.get_added_tokens_decoder()
        special = {token for token, added in self._added.items() if added.special}
        self.all_special_ids: list[int] = sorted(special | set(facts.get("special_ids", ())))
        self.rows: int | None = None
        """Tokens that the model knows, if it is loaded; its tokenizer may have more."""
        self.refused = str(facts.get("refused") or "")
        """Why texts cannot be encoded as the model's authors meant it, in one sentence; empty if they can."""
        self.begins: int | None = facts.get("begins")
        """BOS token that the file puts before every prompt, also before prompts of its chat template."""
        named = self.special_tokens_map.get("bos_token")
        bos = self.begins if named is None else backend.token_to_id(named)
        self._doubled = [bos, bos] if backend.encode("").ids[:1] == [bos] else None
        """How a text that begins with the BOS token itself would begin."""

    @classmethod
    def open(cls, folder: Path, facts: Mapping[str, Any]) -> PlainTokenizer:
        """Load the tokenizer of a packed model.

        Raises:
            EngineError: it cannot be read.
        """
        from tokenizers import Tokenizer  # the app imports this package for its list of models

        path = folder / FILE
        # The library raises plain Exceptions.
        with errors_as(lambda error: f"{path} cannot be read ({error}): delete {folder} and start again"):
            tokenizer = cls(Tokenizer.from_file(str(path)), facts)
            if (folder / TEMPLATE).is_file():  # it may have been edited since the model was packed
                tokenizer.chat_template = (folder / TEMPLATE).read_text(encoding="utf-8")
            return tokenizer

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; with the tokens that every text begins and ends with, the BOS token once.

        Other threads run during it, which `Tokenizer.encode` would block.
        """
        ids: list[int] = self.backend_tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids[1:] if add_special_tokens and ids[:2] == self._doubled else ids

    def decode(
        self, ids: Sequence[int], *, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = False
    ) -> str:
        """Text of token ids; spaces are not cleaned up."""
        assert not clean_up_tokenization_spaces
        if self._same:
            ids = [self._same.get(token, token) for token in ids]
        if self._unused and skip_special_tokens:
            ids = [token for token in ids if token not in self._unused]
        return str(self.backend_tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def end_ids(self, stated: Iterable[int], size: int) -> frozenset[int]:
        """Tokens that end a reply: the stated ones, and tokens of the vocabulary that are known as ends by their text.

        Args:
            stated: ids that the model's files state; ids outside the vocabulary are left out.
            size: V, of the model.
        """
        found = {text: self.backend_tokenizer.token_to_id(text) for text in END_TEXTS}
        known = {text: token for text, token in found.items() if token is not None and self._is_mark(token, text)}
        for end, *others in _NO_ENDS:
            if all(other in known for other in others):
                known.pop(end, None)
        doubles = {token for token, first in self._same.items() if first in known.values()}
        return frozenset(token for token in {*stated, *known.values(), *doubles} if 0 <= token < size)

    def _is_mark(self, token: int, text: str) -> bool:
        """Whether a token is more than an ordinary word."""
        added = self._added.get(token)
        by_text = is_control(text, default_template(self.chat_template))
        return bool(CONTROL_FORM.fullmatch(text)) or (added is not None and (added.special or by_text))

    @property
    def eos_token_id(self) -> int | None:
        """The EOS token that is stated."""
        named = self.special_tokens_map.get("eos_token")
        return None if named is None else self.backend_tokenizer.token_to_id(named)

    def convert_ids_to_tokens(self, token: int) -> str | None:
        """A token's name in the vocabulary."""
        return self.backend_tokenizer.id_to_token(self._same.get(token, token))

    def get_vocab(self) -> dict[str, int]:
        """Every token with its id."""
        return dict(self.backend_tokenizer.get_vocab(with_added_tokens=True))


def check_components(file: Path) -> None:
    """Check that the steps of a tokenizer are few and do not multiply the text: a thousand of them can take all memory.

    Args:
        file: a tokenizer.json.

    Raises:
        EngineError: they are too many, or it cannot be read.
    """
    content = read_json(file)
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        steps, growth, left = 0, 1, [content.get(part)]
        while left:
            each = left.pop()
            if isinstance(each, dict):
                steps += "type" in each
                added = each.get("content") if each.get("type") == "Replace" else "  "
                growth *= max(len(str(added)), 1) if each.get("type") in ("ByteLevel", "Replace") else 1
            left += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        check(
            steps <= _MOST_STEPS and growth <= _MOST_GROWTH,
            f"{file} has a {part} of {steps} steps, more than {_MOST_STEPS} or such that make a text more than "
            f"{_MOST_GROWTH} times as long: fetch the model again",
        )


def tokenizer_facts(tokenizer: Any) -> dict[str, Any]:
    """Facts about a tokenizer of transformers that its `backend_tokenizer` lacks, for JSON."""
    return {
        "chat_template": default_template(tokenizer.chat_template) or None,
        "special_ids": list(tokenizer.all_special_ids),
        "special_tokens": dict(tokenizer.special_tokens_map),
        **tokenizer.init_kwargs.get(FACTS, {}),
    }


def check_vocabularies(target: Any, draft: Any, target_eos: Collection[int], draft_eos: Collection[int]) -> None:
    """Check that a draft's token ids mean the same tokens as the target's.

    Args:
        target: tokenizer of the target.
        draft: tokenizer of the draft.
        target_eos: EOS ids of the target.
        draft_eos: EOS ids of the draft.

    Raises:
        EngineError: as for `check_token_ids`, or they share no EOS token.
    """
    check_token_ids(target, draft, "draft")
    ours, theirs = _by_id(target), _by_id(draft)
    if not set(target_eos) & set(draft_eos):
        raise EngineError(
            f"the draft ends its replies with {_names(theirs, draft_eos)} and the target with "
            f"{_names(ours, target_eos)}; choose a draft of the same family"
        )


def check_token_ids(target: Any, other: Any, role: str) -> None:
    """Check that another model's token ids mean the same tokens as the target's.

    Models of one family pad their embeddings to different sizes (Qwen2.5: 151,936 and 152,064), so only ids that
    both tokenizers have are compared; one may have more than the other only at the end.

    Args:
        target: tokenizer of the target.
        other: tokenizer of the other model.
        role: of the other model, for the error message: draft.

    Raises:
        EngineError: tokens differ (the first is named), or neither set of ids contains the other.
    """
    ours, theirs = _by_id(target), _by_id(other)
    for number in sorted(ours.keys() & theirs.keys()):
        if ours[number] != theirs[number]:
            raise EngineError(
                f"the {role}'s vocabulary is not the target's: token {number} is {theirs[number]!r} in the {role} and "
                f"{ours[number]!r} in the target; choose a {role} of the same family"
            )
    shared = len(ours.keys() & theirs.keys())
    if shared < min(len(ours), len(theirs)):
        raise EngineError(
            f"the {role}'s vocabulary is not the target's: they share {shared} token ids of {len(ours)} and "
            f"{len(theirs)}; choose a {role} of the same family"
        )


def _by_id(tokenizer: Any) -> dict[int, str]:
    return {number: text for text, number in tokenizer.get_vocab().items()}


def _names(vocabulary: dict[int, str], ids: Collection[int]) -> str:
    return ", ".join(repr(vocabulary.get(i, str(i))) for i in sorted(ids)) or "nothing"
