"""Adapters by kind of server: how each is recognised, its requests, and what its streams report about drafts.

Sources:
    specchat: its chunks contain its records, timed by its own clock.
    vLLM: with `--per-request-spec-decode-metrics detailed`, its last chunk reports what every pass accepted.
        vllm-project/vllm, `docs/features/speculative_decoding/acceptance_metrics.md` (fields of
        `metrics.speculative_decoding`, which comes with the usage), and below `vllm/entrypoints`:
        `openai/chat_completion/protocol.py` (`logprobs`), `openai/engine/protocol.py`
        (`StreamOptions.continuous_usage_stats`, `ModelCard`) and `serve/instrumentator/basic.py` (`/version`).
    SGLang: its chat endpoint does not report drafts while it streams ("return_meta_info is not supported with
        streaming"), so the prompt is made by `/v1/tokenize` and sent to `/generate`. A version that cannot make prompts
        of messages gets a plain chat request. sgl-project/sglang, below `python/sglang/srt`:
        `managers/tokenizer_manager.py` (`_calculate_spec_decoding_metrics`: `spec_verify_ct`, `spec_accept_length`, and
        the counts whose names changed), `managers/io_struct.py` (`GenerateReqInput`), `entrypoints/openai/protocol.py`
        (`ModelCard`, `TokenizeRequest`) and `entrypoints/http_server.py` (`/get_server_info`).
    LM Studio: counts of drafted tokens at the end of a reply. Its documentation, release note of 0.3.10
        (`stats.total_draft_tokens_count`, `stats.accepted_draft_tokens_count`, in later versions in `usage`) and "REST
        API v0" (`GET /api/v0/models`: `type`, `state`, `max_context_length`).
    Others: the API reference of OpenAI, "Chat Completions", `stream_options.include_usage`.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from specchat import engine
from specchat.app.sources.servers import protocol
from specchat.app.sources.servers.llama_cpp import find_llama_cpp
from specchat.app.sources.servers.messages import offered, turns

_LARGEST_TOP = 20
"""Largest top-k list of the protocol."""
_SGLANG_SAMPLING = (
    *("temperature", "top_p", "stop", "presence_penalty", "frequency_penalty", "min_p", "repetition_penalty"),
    "logit_bias",
)


def find_specchat(listing: protocol.Listing) -> protocol.Server | None:
    """A `specchat serve`, which lists its model with a `Ready`."""
    try:
        record = engine.from_json(json.dumps(listing.entry(listing.model())["speculation"]))
    except (ValueError, LookupError):
        return None
    return protocol.Server(record, _specchat_call, RecordReader) if isinstance(record, engine.Ready) else None


def _specchat_call(request: engine.Request, ask: protocol.Ask) -> protocol.Call:  # noqa: ARG001
    """The request with all parameters of an engine."""
    s = request.sampling
    body: dict[str, Any] = {"stream": True, "speculation": True, "max_tokens": request.max_tokens}
    body |= {"drafter": request.drafter, "gamma": "auto" if request.gamma is None else request.gamma}
    body |= {name: getattr(s, name) for name in (*engine.SAMPLING_NUMBERS, "seed")}
    body |= {"logit_bias": {str(token): bias for token, bias in s.logit_bias}, "stop": list(request.stop)}
    body |= {"dry_sequence_breakers": list(s.dry_sequence_breakers), "stop_repeats": request.stop_repeats}
    body |= protocol.response_format(request) | offered(request.tools)
    top = min(request.detail, _LARGEST_TOP)
    if request.messages:
        body |= {"messages": turns(request.messages), "thinking": request.thinking}
        body |= {"logprobs": True, "top_logprobs": top} if top else {}
    else:
        body["prompt"] = request.prompt if request.prompt is not None else list(request.prompt_ids)
        body |= {"logprobs": top} if top else {}
    return protocol.Call(protocol.path(request), body)


class RecordReader(protocol.Reader):
    """Extracts the records of chunks, and gives them the client's request id."""

    def read(self, values: dict[str, Any]) -> Iterator[engine.Event]:
        """The record of a chunk, if any."""
        if "speculation" not in values:
            return
        try:
            record = engine.from_json(json.dumps(values["speculation"]))
        except (ValueError, TypeError, RecursionError):
            raise engine.EngineError(
                "the server sent something that is not a record: it may be of another version"
            ) from None
        if isinstance(record, engine.Finished):
            self.finished = replace(record, request_id=self.request_id)
        elif isinstance(record, engine.Admitted | engine.Prefilled | engine.Round | engine.Notice):
            yield replace(record, request_id=self.request_id)

    def ended(self, finished: engine.Finished) -> engine.Finished:
        """The end as the server reports it."""
        return finished


def find_vllm(listing: protocol.Listing) -> protocol.Server | None:
    """vLLM, if the models are its own and the server reports its version."""
    if not listing.owned_by("vllm") or listing.ask("/version", None) is None:
        return None
    model = listing.model()
    ready = protocol.observed_ready("vLLM", model, context=protocol.count(listing.entry(model), "max_model_len"))

    def call(request: engine.Request, ask: protocol.Ask) -> protocol.Call:  # noqa: ARG001
        """Request the text of each token, and a token count in every chunk."""
        body = protocol.standard_body(request, model, "repetition_penalty")
        body["stream_options"]["continuous_usage_stats"] = True
        return protocol.Call(protocol.path(request), body | ({"logprobs": True} if request.messages else {}))

    return protocol.Server(ready, call, VLLMReader)


class VLLMReader(protocol.Reader):
    """Counts tokens in every chunk; the last one, without choices, has the counts of drafts."""

    knows_tokens = True

    def parse(self, values: dict[str, Any]) -> protocol.Chunk:
        """The fields of a chunk."""
        return replace(super().parse(values), last=not values.get("choices"))

    def counts(self, values: dict[str, Any], chunk: protocol.Chunk) -> engine.Totals:
        """Sums, and every pass that tested drafts unless the server reports only sums (`summary`)."""
        metrics = values.get("metrics")
        said = metrics.get("speculative_decoding") if isinstance(metrics, Mapping) else None
        drafted, accepted = protocol.count(said, "num_draft_tokens"), protocol.count(said, "num_accepted_draft_tokens")
        return self.totals(chunk, drafted=drafted, accepted=accepted, steps=_steps(said))


def _steps(said: object) -> tuple[engine.Step, ...] | None:
    if not isinstance(said, Mapping):
        return None
    drafted, accepted = said.get("per_step_drafted"), said.get("per_step_accepted")
    if not isinstance(drafted, Sequence) or not isinstance(accepted, Sequence) or len(drafted) != len(accepted):
        return None
    steps = tuple(engine.Step(d, a) for d, a in zip(drafted, accepted, strict=True))
    whole = all(type(number) is int for step in steps for number in step)
    return steps if whole and all(0 <= step.accepted <= step.drafted <= engine.MOST_DRAFTED for step in steps) else None


def find_sglang(listing: protocol.Listing) -> protocol.Server | None:
    """SGLang, if the models are its own and the server reports its start options."""
    info = listing.ask("/get_server_info", None) if listing.owned_by("sglang") else None
    if not isinstance(info, Mapping):
        return None
    model = listing.model()
    context = protocol.count(listing.entry(model), "max_model_len") or protocol.count(info, "max_total_num_tokens")
    incremental = bool(info.get("incremental_streaming_output") or info.get("stream_output"))

    def call(request: engine.Request, ask: protocol.Ask) -> protocol.Call:
        """The request for `/generate`; a plain chat if the server does not tokenize messages."""
        body = protocol.standard_body(request, model, "repetition_penalty")
        prompt: dict[str, Any]
        if request.tools or request.constraint:  # `/generate` takes neither
            return protocol.Call(protocol.path(request), body)
        if request.messages:
            chat = {"model": model, "messages": turns(request.messages), "add_generation_prompt": True}
            said = ask("/v1/tokenize", chat)
            ids = said.get("tokens") if isinstance(said, Mapping) else None
            if not isinstance(ids, list) or not ids or not all(type(token) is int for token in ids):
                return protocol.Call(protocol.path(request), body)
            prompt = {"input_ids": ids}
        else:
            prompt = {"text": request.prompt} if request.prompt is not None else {"input_ids": list(request.prompt_ids)}
        sampling = {name: body[name] for name in _SGLANG_SAMPLING if name in body}
        sampling |= {"top_k": body["top_k"] or -1, "max_new_tokens": request.max_tokens}  # -1 keeps all tokens
        sampling |= {"sampling_seed": body["seed"]} if "seed" in body else {}
        return protocol.Call("/generate", prompt | {"sampling_params": sampling, "stream": True})

    reader = SGLangReader if incremental else SGLangWholeReader
    return protocol.Server(protocol.observed_ready("SGLang", model, context=context), call, reader)


class SGLangReader(protocol.Reader):
    """Reads chunks of `/generate`, whose last one has the counts, and of a plain chat."""

    received = ""
    """The text so far."""

    def parse(self, values: dict[str, Any]) -> protocol.Chunk:
        """The fields of a chunk."""
        meta = values.get("meta_info")
        self.knows_tokens = meta is not None
        if meta is None:
            return super().parse(values)
        text, ended = values.get("text"), meta.get("finish_reason") if isinstance(meta, Mapping) else None
        if not isinstance(text, str):
            raise engine.EngineError(protocol.NO_CHUNK)
        kind = ended.get("type") if isinstance(ended, Mapping) else None
        named = "error" if kind == "abort" else str(kind)
        reason = None if kind is None else protocol.REASONS.get(named, engine.FinishReason.EOS)
        tokens = protocol.count(meta, "completion_tokens")
        last = tokens is not None and reason is not None
        return protocol.Chunk(self.new(text), "", (), reason, protocol.count(meta, "prompt_tokens"), tokens, last)

    def new(self, text: str) -> str:
        """The new text in the text of a chunk: all of it."""
        return text

    def counts(self, values: dict[str, Any], chunk: protocol.Chunk) -> engine.Totals:
        """Sums of all passes."""
        meta = values.get("meta_info")
        drafted = protocol.count(meta, "spec_num_proposed_drafts", "spec_draft_token_num")
        accepted = protocol.count(meta, "spec_num_correct_drafts", "spec_accept_token_num")
        return self.totals(chunk, passes=protocol.count(meta, "spec_verify_ct"), drafted=drafted, accepted=accepted)


class SGLangWholeReader(SGLangReader):
    """Reads chunks with all text of the reply so far."""

    def new(self, text: str) -> str:
        """What was added since the chunk before."""
        before, self.received = len(self.received), text
        return text[before:]


def find_lm_studio(listing: protocol.Listing) -> protocol.Server | None:
    """LM Studio, if the server has its REST API; the usual model is a loaded one."""
    said = listing.ask("/api/v0/models", None) if listing.owned_by("organization_owner") else None
    entries = said.get("data") if isinstance(said, Mapping) else None
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        return None
    language_models = [entry for entry in entries if entry.get("type") in ("llm", "vlm")]
    language_models.sort(key=lambda entry: entry.get("state") != "loaded")
    model = listing.model(language_models[0].get("id") if language_models else None)
    entry: Mapping[str, Any] = next((entry for entry in language_models if entry.get("id") == model), {})
    context = protocol.count(entry, "loaded_context_length", "max_context_length")
    return _plain(protocol.observed_ready("LM Studio", model, context=context), "repeat_penalty")


def find_plain(listing: protocol.Listing) -> protocol.Server:
    """Any server."""
    return _plain(protocol.observed_ready("OpenAI protocol", listing.model()), None)


def _plain(ready: engine.Ready, penalty: str | None) -> protocol.Server:
    def call(request: engine.Request, _: protocol.Ask) -> protocol.Call:
        return protocol.Call(protocol.path(request), protocol.standard_body(request, ready.target, penalty))

    return protocol.Server(ready, call, PlainReader)


class PlainReader(protocol.Reader):
    """Reads any stream; the last chunk may have LM Studio's counts."""

    def counts(self, values: dict[str, Any], chunk: protocol.Chunk) -> engine.Totals:
        """Drafted and accepted tokens, from `stats` or from `usage`."""
        names = "total_draft_tokens_count", "accepted_draft_tokens_count"
        places = values.get("stats"), values.get("usage")
        said = next((place for place in places if protocol.count(place, names[0]) is not None), None)
        return self.totals(chunk, drafted=protocol.count(said, names[0]), accepted=protocol.count(said, names[1]))


Find = Callable[[protocol.Listing], protocol.Server | None]
KINDS: tuple[Find, ...] = (find_specchat, find_llama_cpp, find_vllm, find_sglang, find_lm_studio, find_plain)
"""The first that recognises a server serves as its adapter."""
