"""SGLang: sums at the end of a reply, from its own endpoint.

Its chat endpoint says nothing of drafts while it streams ("return_meta_info is not supported with streaming"), so the
prompt is made by `/v1/tokenize` and sent to `/generate`; a version that makes no prompts of messages is asked for a
plain chat.

Source: sgl-project/sglang, `python/sglang/srt/managers/tokenizer_manager.py` (`_calculate_spec_decoding_metrics`:
`spec_verify_ct`, `spec_accept_length`, and the counts whose names changed), `python/sglang/srt/managers/io_struct.py`
(`GenerateReqInput`), `python/sglang/srt/entrypoints/openai/protocol.py` (`ModelCard`, `TokenizeRequest`) and
`python/sglang/srt/entrypoints/http_server.py` (`/get_server_info`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specchat.app.sources.servers.listing import Listing, observed_ready
from specchat.app.sources.servers.protocol import (
    NO_CHUNK,
    REASONS,
    Chunk,
    count,
    path,
    read_chunk,
    standard_body,
    turns,
)
from specchat.app.sources.servers.reply_stream import ReplyStream
from specchat.app.sources.servers.server import Ask, Call, Clock
from specchat.engine import EngineError, Event, Finished, FinishReason, Ready, Request

NAME = "SGLang"
EXTENSIONS = {"top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repetition_penalty"}
ACCEPTED = ("spec_num_correct_drafts", "spec_accept_token_num")
DRAFTED = ("spec_num_proposed_drafts", "spec_draft_token_num")


class SGLang:
    """An SGLang server.

    Args:
        ready: its model.
        whole: whether a chunk of `/generate` has all of the text so far, rather than what is new.
    """

    def __init__(self, ready: Ready, *, whole: bool = True) -> None:
        self.ready = ready
        self._whole = whole

    @classmethod
    def found(cls, listing: Listing) -> SGLang | None:
        """The server, if its models are SGLang's and it says how it was started."""
        info = listing.ask("/get_server_info", None) if listing.owned_by("sglang") else None
        if not isinstance(info, Mapping):
            return None
        model = listing.model()
        context = count(listing.entry(model), "max_model_len") or count(info, "max_total_num_tokens")
        new_only = info.get("incremental_streaming_output") or info.get("stream_output")
        return cls(observed_ready(NAME, model, context=context), whole=not new_only)

    def call(self, request: Request, ask: Ask) -> Call:
        """The request at `/generate`; a plain chat where the server does not make the prompt."""
        body = standard_body(request, self.ready.target, EXTENSIONS)
        prompt: dict[str, Any] | None = None
        if request.messages:
            made = {"model": self.ready.target, "messages": turns(request.messages), "add_generation_prompt": True}
            said = ask("/v1/tokenize", made)
            ids = said.get("tokens") if isinstance(said, Mapping) else None
            if isinstance(ids, list) and ids and all(type(token) is int for token in ids):
                prompt = {"input_ids": ids}
        else:
            prompt = {"text": request.prompt} if request.prompt is not None else {"input_ids": list(request.prompt_ids)}
        if prompt is None:
            return Call(path(request), body)
        names = ("temperature", "top_p", "stop", "presence_penalty", "frequency_penalty", *EXTENSIONS.values())
        sampling = {name: body[name] for name in names if name in body} | {"max_new_tokens": request.max_tokens}
        sampling["top_k"] = body["top_k"] or -1  # its word for all
        sampling |= {"sampling_seed": body["seed"]} if "seed" in body else {}
        sampling |= {"logit_bias": body["logit_bias"]} if "logit_bias" in body else {}
        return Call("/generate", prompt | {"sampling_params": sampling, "stream": True})

    def reader(self, request_id: str, clock: Clock) -> SGLangReader:
        """A reader that learns sums at the end."""
        return SGLangReader(ReplyStream(request_id, clock), whole=self._whole)


class SGLangReader:
    """Makes tokens of unknown fate of chunks, and `Totals` of the last one."""

    def __init__(self, stream: ReplyStream, *, whole: bool) -> None:
        self._stream = stream
        self._whole = whole
        self._length = 0
        """Characters that have come."""

    @property
    def finished(self) -> Finished | None:
        """The end, once the server has told it."""
        return self._stream.finished

    def read(self, values: dict[str, Any]) -> Iterator[Event]:
        """The tokens of this chunk, and what the server says with the last one."""
        meta = values.get("meta_info")
        chunk = read_chunk(values) if meta is None else self._native(values, meta)
        text = self._stream.text_of(chunk)
        if text or meta is not None:
            yield from self._stream.admit(chunk.prompt_tokens, count(meta, "cached_tokens") or 0)
            yield from self._stream.unknown(text, (), chunk.tokens if meta is not None else None)
        self._stream.finish(chunk.reason)
        if chunk.tokens is not None and (chunk.reason is not None if meta is not None else not text):
            passes, accepted, drafted = (count(meta, *names) for names in (("spec_verify_ct",), ACCEPTED, DRAFTED))
            yield self._stream.totals(chunk, passes=passes, drafted=drafted, accepted=accepted)

    def close(self) -> Iterator[Event]:
        """Nothing is held back."""
        yield from ()

    def _native(self, values: Mapping[str, Any], meta: object) -> Chunk:
        text, ended = values.get("text"), meta.get("finish_reason") if isinstance(meta, Mapping) else None
        if not isinstance(text, str):
            raise EngineError(NO_CHUNK)
        new = text[self._length :] if self._whole else text
        self._length += len(new)
        kind = ended.get("type") if isinstance(ended, Mapping) else None
        reason = None if kind is None else REASONS.get("error" if kind == "abort" else kind, FinishReason.EOS)
        return Chunk(new, "", (), reason, count(meta, "prompt_tokens"), count(meta, "completion_tokens"))
