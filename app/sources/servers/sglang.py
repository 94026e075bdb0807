"""SGLang: counts of drafted tokens at the end of a reply, from its own endpoint.

Its chat endpoint does not report drafts while it streams ("return_meta_info is not supported with streaming"), so the
prompt is made by `/v1/tokenize` and sent to `/generate`. A version that cannot make prompts of messages gets a plain
chat request.

Source: sgl-project/sglang, `python/sglang/srt/managers/tokenizer_manager.py` (`_calculate_spec_decoding_metrics`:
`spec_verify_ct`, `spec_accept_length`, and the counts whose names changed), `python/sglang/srt/managers/io_struct.py`
(`GenerateReqInput`), `python/sglang/srt/entrypoints/openai/protocol.py` (`ModelCard`, `TokenizeRequest`) and
`python/sglang/srt/entrypoints/http_server.py` (`/get_server_info`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specchat.app.sources.servers.protocol import NO_CHUNK, REASONS, Chunk, ReplyStream, count, path, read_chunk, turns
from specchat.app.sources.servers.server import Ask, Call, Listing, ObservedReader, ObservedServer, observed_ready
from specchat.engine import EngineError, Event, FinishReason, Request

_EXTENSIONS = {"top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repetition_penalty"}
_ACCEPTED = ("spec_num_correct_drafts", "spec_accept_token_num")
_DRAFTED = ("spec_num_proposed_drafts", "spec_draft_token_num")
_SAMPLING = ("temperature", "top_p", "stop", "presence_penalty", "frequency_penalty", "min_p", "repetition_penalty")


def find_sglang(listing: Listing) -> ObservedServer | None:
    """The server, if its models are SGLang's and it reports its start options."""
    info = listing.ask("/get_server_info", None) if listing.owned_by("sglang") else None
    if not isinstance(info, Mapping):
        return None
    model = listing.model()
    context = count(listing.entry(model), "max_model_len") or count(info, "max_total_num_tokens")
    incremental = bool(info.get("incremental_streaming_output") or info.get("stream_output"))
    return ObservedServer(
        observed_ready("SGLang", model, context=context),
        model,
        lambda stream: SGLangReader(stream, incremental=incremental),
        _EXTENSIONS,
        _prepare,
    )


def _prepare(request: Request, body: dict[str, Any], ask: Ask) -> Call:
    """The request for `/generate`; a plain chat if the server does not tokenize messages."""
    prompt: dict[str, Any]
    if request.messages:
        said = ask(
            "/v1/tokenize", {"model": body["model"], "messages": turns(request.messages), "add_generation_prompt": True}
        )
        ids = said.get("tokens") if isinstance(said, Mapping) else None
        if not isinstance(ids, list) or not ids or not all(type(token) is int for token in ids):
            return Call(path(request), body)
        prompt = {"input_ids": ids}
    else:
        prompt = {"text": request.prompt} if request.prompt is not None else {"input_ids": list(request.prompt_ids)}
    sampling = {name: body[name] for name in (*_SAMPLING, "logit_bias") if name in body}
    sampling |= {"top_k": body["top_k"] or -1, "max_new_tokens": request.max_tokens}  # -1 keeps all tokens
    sampling |= {"sampling_seed": body["seed"]} if "seed" in body else {}
    return Call("/generate", prompt | {"sampling_params": sampling, "stream": True})


class SGLangReader(ObservedReader):
    """Makes tokens of unknown fate of chunks, and `Totals` of the last one.

    Args:
        stream: of the reply.
        incremental: whether a chunk of `/generate` has only the new text, rather than all text so far.
    """

    def __init__(self, stream: ReplyStream, *, incremental: bool) -> None:
        super().__init__(stream)
        self._incremental = incremental
        self._length = 0
        """Characters received."""

    def read(self, values: dict[str, Any]) -> Iterator[Event]:
        """The tokens of this chunk, and the counts in the last one."""
        meta = values.get("meta_info")
        chunk = read_chunk(values) if meta is None else self._native(values, meta)
        text = self._stream.text_of(chunk)
        if text or meta is not None:
            yield from self._stream.admit(chunk.prompt_tokens, count(meta, "cached_tokens") or 0)
            yield from self._stream.unknown(text, (), chunk.tokens if meta is not None else None)
        self._stream.finish(chunk.reason)
        if chunk.tokens is not None and (chunk.reason is not None if meta is not None else not text):
            passes, accepted, drafted = (count(meta, *names) for names in (("spec_verify_ct",), _ACCEPTED, _DRAFTED))
            yield self._stream.totals(chunk, passes=passes, drafted=drafted, accepted=accepted)

    def _native(self, values: Mapping[str, Any], meta: object) -> Chunk:
        text, ended = values.get("text"), meta.get("finish_reason") if isinstance(meta, Mapping) else None
        if not isinstance(text, str):
            raise EngineError(NO_CHUNK)
        new = text if self._incremental else text[self._length :]
        self._length += len(new)
        kind = ended.get("type") if isinstance(ended, Mapping) else None
        reason = None if kind is None else REASONS.get("error" if kind == "abort" else kind, FinishReason.EOS)
        return Chunk(new, "", (), reason, count(meta, "prompt_tokens"), count(meta, "completion_tokens"))
