"""Detokenizer of one reply: token ids in, text out, with stop strings."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from specchat.engine.round import Call
from specchat.engine.sequence.reply_parser import ReplyParser, overlap

_UNKNOWN = "\N{REPLACEMENT CHARACTER}"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""Name of a token for a single byte in vocabularies of SentencePiece."""
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(0x100 + n): byte for n, byte in enumerate(sorted({*range(0x100)} - {*_PRINTABLE}))
}
"""Bytes by the characters that stand for them in byte-level vocabularies, as defined by GPT-2."""


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

    def take_calls(self) -> tuple[tuple[Call, ...], tuple[Call, ...]]:
        """Calls of tools that were completed, and parts that were written, since this was called last."""
        if self._parser is None:
            return (), ()
        taken = tuple(self._parser.calls), tuple(self._parser.parts)
        self._parser.calls.clear()
        self._parser.parts.clear()
        return taken

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
        if piece and not piece.endswith(_UNKNOWN):
            self._before, self._ids = self._ids, []
            return piece
        if not self._decode([token, token]):  # a control token
            self._ids.pop()
            return ""
        kept = self._incomplete() if piece else 0
        ready, self._ids = self._ids[: len(self._ids) - kept], self._ids[len(self._ids) - kept :]
        if not ready:
            return ""
        piece = self._after(self._before, ready) if kept else piece
        if not piece:  # the space that SentencePiece adds before the first word
            self._before += ready
        elif not piece.endswith(_UNKNOWN) or self._decode(ready).endswith(_UNKNOWN):
            self._before = ready  # otherwise the tokens before it say that this run of bytes is no text
        return piece

    def _incomplete(self) -> int:
        """Number of last tokens whose bytes may still become a character; it has at most four bytes."""
        data = [self._bytes(token) for token in self._ids]
        decoder = getincrementaldecoder("utf-8")("replace")
        decoder.decode(b"".join(data))
        kept, missing = 0, len(decoder.getstate()[0])
        while missing > 0 or (0 < kept < len(data) and 0x80 <= data[-kept][0] < 0xC0):  # not within a character
            kept += 1
            missing -= len(data[-kept])
        return kept

    def _bytes(self, token: int) -> bytes:
        name = str(self._tokenizer.convert_ids_to_tokens(token) or "")
        if byte := _BYTE.fullmatch(name):
            return bytes.fromhex(byte[1])
        return bytes(_BYTE_OF[sign] for sign in name) if _BYTE_OF.keys() >= set(name) else name.encode()

    def _release(self, piece: str) -> str:
        text = self._held + piece
        ends = [at for at in (text.find(s) for s in self.stops) if at >= 0]
        if ends:
            self.stopped = True
            return text[: min(ends)]
        keep = overlap(text, self.stops) if self.stops else 0
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
