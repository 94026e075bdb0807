"""Other chats: replies of the user's other chats as a source of drafts. Only the application provides them."""

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

    Only one thread at a time may use it; the engine's thread may draft at the same time.

    Args:
        datastore: read by the drafters.
        tokenizer: of the target.
        vocabulary: V of the target.
    """

    def __init__(self, datastore: Datastore, tokenizer: Any, vocabulary: int) -> None:
        self._datastore = datastore
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary

    @property
    def wanted(self) -> int:
        """Maximum number of tokens to provide, of the newest replies."""
        return self._datastore.wanted

    @property
    def keys(self) -> frozenset[int]:
        """Keys of the replies in use."""
        return self._datastore.keys

    @cached_property
    def tokenizer_digest(self) -> str:
        """Digest of the tokenizer and its chat template, which determine the result of `encode`."""
        backend: str = self._tokenizer.backend_tokenizer.to_str()
        return hashlib.blake2b(f"{backend}\0{self._tokenizer.chat_template}".encode(), digest_size=16).hexdigest()

    def encode(self, prompt: str, reply: str) -> list[int]:
        """Token ids of the end of a prompt, where a match may begin, and of its reply."""
        before: list[int] = []
        with suppress(EngineError):  # a prompt that the template refuses
            before = encode(Request("other", (Message("user", prompt),)), self._tokenizer)
        after: list[int] = self._tokenizer.encode(reply, add_special_tokens=False)
        return [*before[-self._datastore.context :], *after]

    def update(self, new: Mapping[int, Sequence[int]], gone: Collection[int] = frozenset()) -> None:
        """Add and remove replies. Token ids beyond the vocabulary are ignored."""
        valid = {key: tokens for key, tokens in new.items() if tokens and max(tokens) < self._vocabulary}
        self._datastore.update(valid, gone)
