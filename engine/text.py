"""Between text and tokens: the chat template, and a reply that grows piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers.decoders import DecodeStream

from engine.errors import EngineError
from engine.request import Message, Request


def encode(request: Request, tokenizer: Any) -> list[int]:
    """The prompt of a request as token ids.

    Args:
        request: what was asked.
        tokenizer: a fast tokenizer of transformers.

    Raises:
        EngineError: the chat template refuses the conversation, or the prompt is empty.
    """
    if request.prompt_ids:
        return list(request.prompt_ids)
    if request.prompt is not None:
        ids = tokenizer.encode(request.prompt)
    elif tokenizer.chat_template:
        ids = tokenizer.encode(_render(request.messages, tokenizer), add_special_tokens=False)
    else:
        ids = tokenizer.encode(plain_template(request.messages))
    if not ids:
        raise EngineError("the prompt is empty: ask something")
    return list(ids)


def plain_template(messages: Sequence[Message]) -> str:
    """The conversation for a model that has no chat template: one labelled line per turn."""
    lines = [f"{message.role.capitalize()}: {message.content}" for message in messages]
    return "\n".join([*lines, "Assistant:"])


def _render(messages: Sequence[Message], tokenizer: Any) -> str:
    turns = [{"role": message.role, "content": message.content} for message in messages]
    try:
        return str(tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))
    except Exception as error:  # a template is a program of the model's: it may raise anything
        raise EngineError(f"the model's chat template refuses this conversation: {error}") from None


class ReplyText:
    """The text of one reply, token by token, ended by the first stop string to appear.

    What `add` and `tail` return concatenates to the whole text. A piece is empty while its token is only a part of a
    character, or while the text could still turn out to be a stop string.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._stop = tuple(s for s in stop if s)
        self._ids: list[int] = []
        self._streamed = ""
        self._held = ""
        self.stopped = False
        """Whether a stop string has been completed; nothing may be added after that."""

    def add(self, token: int) -> str:
        """The text that this token releases."""
        piece = self._stream.step(self._tokenizer.backend_tokenizer, token) or ""
        self._ids.append(token)
        self._streamed += piece
        return self._release(piece)

    def tail(self) -> str:
        """The text held back when the reply ends: half a character, the start of a stop string that never came."""
        if self.stopped:
            return ""
        whole = self._tokenizer.decode(self._ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        rest = whole[len(self._streamed) :] if whole.startswith(self._streamed) else ""
        return self._release(rest) + ("" if self.stopped else self._held)

    def alternative(self, tokens: Sequence[int], after: int) -> list[str]:
        """The pieces that `tokens` would have been behind the token `after`; the reply is not changed."""
        pieces: list[str] = []
        for token in tokens:
            before, whole = self._decode([after]), self._decode([after, token])
            piece = whole[len(before) :] if whole.startswith(before) else self._decode([token])
            pieces.append(piece or self.name(token))
            after = token
        return pieces

    def name(self, token: int) -> str:
        """The text of a token on its own; its name in the vocabulary where it has none."""
        return self._decode([token]) or str(self._tokenizer.convert_ids_to_tokens(token) or "")

    def _release(self, piece: str) -> str:
        text = self._held + piece
        ends = [at for at in (text.find(s) for s in self._stop) if at >= 0]
        if ends:
            self.stopped = True
            return text[: min(ends)]
        keep = max((_overlap(text, s) for s in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, shorter than `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0)
