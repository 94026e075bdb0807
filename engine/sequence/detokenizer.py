"""Detokenizer of one reply: token ids in, text out, with stop strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from specchat.engine.sequence.reply_parser import ReplyParser, overlap


class Detokenizer:
    """Incremental detokenizer of one reply, which ends before the first stop string to appear.

    The pieces that `add` and `tail` return concatenate to the whole text. A piece is empty if its token completes no
    character, or while the text may become a stop string.

    Args:
        tokenizer: a `PlainTokenizer`.
        stop: stop strings, none of them empty.
        parser: separates the thinking; None to keep all text with its marks.
        marks: control tokens around the thinking, with their text; others are left out.
        after: the tokens before the reply, where it continues their text.
    """

    def __init__(
        self,
        tokenizer: Any,
        stop: Sequence[str],
        parser: ReplyParser | None = None,
        marks: Mapping[int, str] = MappingProxyType({}),
        after: Sequence[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._parser = parser
        self._marks = marks
        self.stops = tuple(stop)
        self._before = list(after[-1:])
        """The last tokens whose text has been returned or is held: the text of the next ones may depend on them."""
        self._ids: list[int] = []
        """The tokens after them, which complete no character yet."""
        self._held = ""
        self.stopped = False
        """Whether a stop string was completed; nothing may be added after that."""

    @property
    def thinking(self) -> bool:
        """Whether the text returned last is part of the model's thinking."""
        return self._parser is not None and self._parser.thinking

    def begin(self, tokens: Sequence[int]) -> list[tuple[str, bool]]:
        """Text per token of the given beginning of the reply, and `thinking`. It is not searched for stop strings."""
        return [(self._step(token), self.thinking) for token in tokens]

    def add(self, token: int) -> str:
        """Append a token; returns the text it releases, which may be empty or include text held back before."""
        text = self._release(self._step(token))
        if self._parser is not None and self._parser.fresh and not self.stopped:
            text, self._held = text + self._held, ""  # no stop string reaches into the next part
        return text

    def tail(self) -> str:
        """Text held back at the end of the reply: an incomplete character, the beginning of a mark or stop string."""
        if self.stopped:
            return ""
        text = self._after(self._before, self._ids)
        if self._parser is not None:
            text = self._parser.feed(text) + self._parser.end()
        return self._release(text) + ("" if self.stopped else self._held)

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
        """Text that this token completes, without marks."""
        if token not in self._marks:
            piece = self._complete(token)
        else:
            mark = self._marks[token]
            piece, self._ids = self._after(self._before, self._ids), []
            piece += mark if self._parser is None or self._parser.counts(mark) else ""
        return self._parser.feed(piece) if self._parser is not None else piece

    def _complete(self, token: int) -> str:
        """Text that this token completes, with marks that are no control tokens."""
        self._ids.append(token)
        piece = self._after(self._before, self._ids)
        if not piece or piece.endswith("\N{REPLACEMENT CHARACTER}"):  # a control token, or a part of a character
            return ""
        self._before, self._ids = self._ids, []
        return piece

    def _release(self, piece: str) -> str:
        text = self._held + piece
        ends = [at for at in (text.find(s) for s in self.stops) if at >= 0]
        if ends:
            self.stopped = True
            return text[: min(ends)]
        keep = overlap(text, self.stops)
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
    text = Detokenizer(tokenizer, (), marks=special)
    pieces = [piece for piece, _ in text.begin(ids)]
    return [*pieces[:-1], pieces[-1] + text.tail()]
