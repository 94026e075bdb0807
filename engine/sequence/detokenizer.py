"""Detokenizer of one reply: token ids in, text out, with stop strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any


class Detokenizer:
    """Incremental detokenizer of one reply, which ends before the first stop string to appear.

    The pieces that `add` and `tail` return concatenate to the whole text. A piece is empty if its token completes no
    character, or while the text may become a stop string.

    Args:
        tokenizer: a fast tokenizer of transformers.
        stop: stop strings, none of them empty.
        shown: text of the special tokens that are part of the reply; others are left out.
        after: the tokens before the reply, where it continues their text.
    """

    def __init__(
        self,
        tokenizer: Any,
        stop: Sequence[str],
        shown: Mapping[int, str] = MappingProxyType({}),
        after: Sequence[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._shown = shown
        self.stops = tuple(stop)
        self._before = list(after[-1:])
        """The last tokens whose text has been returned or is held: the text of the next ones may depend on them."""
        self._ids: list[int] = []
        """The tokens after them, which complete no character yet."""
        self._held = ""
        self.stopped = False
        """Whether a stop string was completed; nothing may be added after that."""

    def begin(self, tokens: Sequence[int]) -> list[str]:
        """Text per token of the given beginning of the reply, which is not searched for stop strings."""
        return [self._step(token) for token in tokens]

    def add(self, token: int) -> str:
        """Append a token; returns the text it releases, which may be empty or include text held back before."""
        return self._release(self._step(token))

    def tail(self) -> str:
        """Text held back at the end of the reply: an incomplete character, or the beginning of a stop string."""
        if self.stopped:
            return ""
        return self._release(self._after(self._before, self._ids)) + ("" if self.stopped else self._held)

    def alternative(self, tokens: Sequence[int], after: int) -> list[str]:
        """Text per token of `tokens` as a continuation of the token `after`; the reply is not changed."""
        pieces: list[str] = []
        for token in tokens:
            pieces.append(self._after([after], [token]) or self.name(token))
            after = token
        return pieces

    def name(self, token: int) -> str:
        """Text of a single token, or its name in the vocabulary if it has no text."""
        return self._decode([token]) or str(self._tokenizer.convert_ids_to_tokens(token) or "")

    def names(self, count: int) -> list[str]:
        """Names of the first `count` tokens: at once, they take less time."""
        decode = self._tokenizer.backend_tokenizer.decode_batch
        texts = decode([[token] for token in range(count)], skip_special_tokens=True)
        return [text or self.name(token) for token, text in enumerate(texts)]

    def _step(self, token: int) -> str:
        """Text that this token completes."""
        if token in self._shown:
            return self._shown[token]
        self._ids.append(token)
        piece = self._after(self._before, self._ids)
        if not piece or piece.endswith("\N{REPLACEMENT CHARACTER}"):  # a special token, or a part of a character
            return ""
        self._before, self._ids = self._ids, []
        return piece

    def _release(self, piece: str) -> str:
        text = self._held + piece
        ends = [at for at in (text.find(s) for s in self.stops) if at >= 0]
        if ends:
            self.stopped = True
            return text[: min(ends)]
        keep = max((_overlap(text, s) for s in self.stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _after(self, before: list[int], ids: list[int]) -> str:
        """Text of tokens after others. Bytes that are no character can change the text of bytes before them."""
        first, whole = self._decode(before), self._decode(before + ids)
        return whole[len(first) :] if whole.startswith(first) else self._decode(ids)

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))


def texts_of(ids: Sequence[int], tokenizer: Any) -> list[str]:
    """Text that each token adds to a text, of special tokens too."""
    decode = tokenizer.backend_tokenizer.decode
    special = {token: decode([token], skip_special_tokens=False) for token in set(ids) if not decode([token])}
    text = Detokenizer(tokenizer, (), special)
    pieces = text.begin(ids)
    return [*pieces[:-1], pieces[-1] + text.tail()]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of `stop` that `text` ends with."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0)
