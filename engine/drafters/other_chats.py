"""Other chats: what an engine's drafts may be taken from next to the text of the chat itself.

The caller of the engine provides the texts; no other chats are ever used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from specchat.engine.errors import EngineError
from specchat.engine.request import Message, Request
from specchat.engine.sequence.prompt import encode

if TYPE_CHECKING:
    from specchat.engine.drafters.datastore import Datastore


class OtherChats:
    """Replies of other chats, by numbers that grow with time.

    One thread at a time may use it; the engine drafts at the same time.

    Args:
        datastore: what drafters read.
        tokenizer: of the target.
        vocabulary: V of the target.
    """

    def __init__(self, datastore: Datastore, tokenizer: Any, vocabulary: int) -> None:
        self._datastore = datastore
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary

    @property
    def wanted(self) -> int:
        """Number of tokens to provide, from the newest replies."""
        return self._datastore.wanted

    @property
    def keys(self) -> frozenset[int]:
        """Keys of the replies that drafts are taken from."""
        return self._datastore.keys

    @cached_property
    def tokenizer_digest(self) -> str:
        """Names the tokenizer and its chat template: with the same, `encode` gives the same."""
        backend: str = self._tokenizer.backend_tokenizer.to_str()
        return hashlib.blake2b(f"{backend}\0{self._tokenizer.chat_template}".encode(), digest_size=16).hexdigest()

    def encode(self, prompt: str, reply: str) -> list[int]:
        """Token ids of a reply, preceded by the end of its prompt: a match may begin there."""
        before: list[int] = []
        with suppress(EngineError):  # a prompt that the template refuses
            before = encode(Request("other", (Message("user", prompt),)), self._tokenizer)
        behind: list[int] = self._tokenizer.encode(reply, add_special_tokens=False)
        return [*before[-self._datastore.context :], *behind]

    def update(self, new: Mapping[int, Sequence[int]], gone: Collection[int] = frozenset()) -> None:
        """Take drafts from these replies too, and no longer from removed ones.

        What `encode` cannot have given is left out.
        """
        valid = {key: tokens for key, tokens in new.items() if tokens and max(tokens) < self._vocabulary}
        self._datastore.update(valid, gone)
