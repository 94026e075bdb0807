"""A small server that answers as others do: what they list, and streams in the shapes that their sources define."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from specchat.app.sources.attached import AttachedEngine
from specchat.engine import Message, Outbox, Request
from specchat.engine.events import Event
from tests.engine.tiny import ended

ASKED = (Message("user", "Hello?"),)
CHAT = "/v1/chat/completions"
BREAK = "break"
"""Place in a stream at which the connection is cut."""
QUEUE = "queue"
"""Begins a stream: nothing is answered until the client leaves."""


class Answer(BaseHTTPRequestHandler):
    """One answer of a recorded server."""

    server: Recorded

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((self.path, body))
        self._answer(body)

    def _answer(self, body: Any) -> None:
        server = self.server
        if not server.lets_in(self.path, self.headers.get("authorization")):
            self._page(401, {"error": {"message": "Invalid API Key", "type": "authentication_error"}})
        elif body is not None and self.path in server.streams:
            stream = server.streams[self.path]
            self._stream(stream(body) if callable(stream) else stream)
        else:
            page = server.pages.get(self.path, (404, {"error": "Not Found"}))
            self._page(*page) if isinstance(page, tuple) else self._page(200, page)

    def _page(self, status: int, page: Any) -> None:
        data = page.encode() if isinstance(page, str) else json.dumps(page).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, chunks: Sequence[Mapping[str, Any] | str]) -> None:
        if QUEUE in chunks[:1]:
            self.connection.recv(1)
            self.server.left.put(self.path)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for chunk in chunks:
            if chunk == BREAK:
                self.connection.shutdown(2)
                return
            data = chunk if isinstance(chunk, str) else json.dumps(chunk)
            self.wfile.write(f"data: {data}\n\n".encode())
            self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


class Recorded(ThreadingHTTPServer):
    """A running server.

    Args:
        pages: the JSON, or a status and the JSON, of each path without a stream.
        streams: the chunks of each path that streams, or a function of the body that makes them; texts go out as
            they are.
        key: what callers must give.
        free: paths that need none.
    """

    def __init__(
        self,
        pages: Mapping[str, Any],
        streams: Mapping[str, Any] | None = None,
        key: str | None = None,
        free: Sequence[str] = (),
    ) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.pages, self.streams = pages, streams or {}
        self.asked: list[tuple[str, Any]] = []
        """Path and body of each POST."""
        self.left: queue.SimpleQueue[str] = queue.SimpleQueue()
        """Path of each stream that a client has left in the queue."""
        self._key, self._free = key, free
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def lets_in(self, path: str, authorization: str | None) -> bool:
        """Whether a caller has the key, or needs none."""
        return self._key is None or path in self._free or authorization == f"Bearer {self._key}"

    def server_close(self) -> None:
        """End the server, as leaving its block does."""
        self.shutdown()
        super().server_close()


def first(engine: AttachedEngine) -> Event:
    """What a client says after it has said that it asks."""
    engine.start()
    assert engine.outbox.get(60) is not None
    event = engine.outbox.get(60)
    assert event is not None
    return event


def met(url: str, key: str | None = None, model: str | None = None) -> Event:
    """What a client says about a server."""
    engine = AttachedEngine(url, key, model)
    event = first(engine)
    engine.close()
    return event


def answered(url: str, **changes: Any) -> list[Event]:
    """The events of one reply of a server."""
    engine, box = AttachedEngine(url), Outbox()
    engine.submit(Request("r", ASKED, **{"max_tokens": 50, **changes}), box)
    events = ended(box)
    engine.close()
    return events


def chunk(text: str | None = None, reason: str | None = None, **more: Any) -> dict[str, Any]:
    """One chunk of a chat, as every server has it."""
    delta = {} if text is None else {"content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": reason, **more.pop("choice", {})}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more}


def usage(prompt: int, completion: int) -> dict[str, int]:
    """Counts of tokens, as OpenAI's API has them."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def last_chunk(prompt: int, completion: int, **more: Any) -> dict[str, Any]:
    """The chunk after a reply that `stream_options.include_usage` asks for."""
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], **more} | {
        "usage": usage(prompt, completion) | more.get("usage", {})
    }


def models(owner: str, *names: str, **more: Any) -> dict[str, Any]:
    """What `/v1/models` lists."""
    data = [{"id": n, "object": "model", "owned_by": owner, **more} for n in names or ("m",)]
    return {"object": "list", "data": data}


def timings(predicted: int, drafted: int = 0, accepted: int = 0) -> dict[str, Any]:
    """llama.cpp: `result_timings::to_json` in tools/server/server-task.cpp; counters of drafts are left out while 0."""
    counts = {"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {}
    return {"timings": {"cache_n": 3, "prompt_n": 30, "predicted_n": predicted, "predicted_ms": 1.0, **counts}}


LLAMA_CPP = {
    "/v1/models": models("llamacpp", meta={"n_ctx_train": 8192}),
    # get_props in tools/server/server-context.cpp
    "/props": {"default_generation_settings": {"n_ctx": 1024, "params": {}}, "total_slots": 2, "build_info": "b1"},
}
LLAMA_CPP_STREAM = [
    chunk(prompt_progress={"total": 33, "cache": 3, "processed": 33, "time_ms": 500}, **timings(0)),
    chunk("1", **timings(1)),
    # a draft of 4, of which 2 were accepted: the counters rise with the first token, then the tokens come one by one
    chunk(".", **timings(2, 4, 2)),
    chunk(" Gra", **timings(3, 4, 2)),
    chunk("pes", **timings(4, 4, 2)),
    chunk("\n", **timings(5, 4, 2)),  # a pass without a draft
    chunk("2", **timings(6, 7, 5)),  # all 3 accepted
    chunk(".", **timings(7, 7, 5)),
    chunk("😀", **timings(9, 7, 5)),  # two tokens: the first ended inside the character, and no chunk was sent for it
    chunk("x", **timings(10, 9, 6)),  # 1 of 2 accepted; the token after it ends the reply and has no text
    chunk(None, "stop"),
    last_chunk(33, 11, **timings(11, 9, 6)),
    "[DONE]",
]


def spoken(tokens: Sequence[str], so_far: int) -> dict[str, Any]:
    """vLLM: a chunk with `logprobs` (ChatCompletionLogProbs) and a count (StreamOptions.continuous_usage_stats)."""
    content = [{"token": t, "logprob": -0.1, "bytes": list(t.encode()), "top_logprobs": []} for t in tokens]
    return chunk("".join(tokens), choice={"logprobs": {"content": content}}, usage=usage(20, so_far))


VLLM = {"/v1/models": models("vllm", "meta/Llama", max_model_len=4096), "/version": {"version": "0.29.0"}}
VLLM_CHUNKS = [
    chunk("", usage=usage(20, 0)), spoken(["Hello"], 1), spoken([",", " how", " are"], 4), spoken([" you"], 5),
    spoken([" to", "day"], 7), chunk("", "length", usage=usage(20, 7)),
]  # fmt: skip
VLLM_METRICS = {
    # docs/features/speculative_decoding/acceptance_metrics.md
    "mean_acceptance_length": 2.33, "draft_acceptance_rate": 0.44, "acceptance_histogram": [1, 0, 1, 1],
    "num_spec_steps": 3, "num_accepted_draft_tokens": 5, "num_draft_tokens": 9, "num_spec_tokens": 3,
    "per_step_accepted": [2, 0, 3], "per_step_drafted": [3, 3, 3],
}  # fmt: skip


def vllm_stream(metrics: Mapping[str, Any] | None) -> list[dict[str, Any] | str]:
    """A reply of seven tokens; the last step accepted more than `max_tokens` let out."""
    return [*VLLM_CHUNKS, last_chunk(20, 7, metrics={"speculative_decoding": metrics}), "[DONE]"]


SGLANG = {
    "/v1/models": models("sglang", "qwen", max_model_len=32768),
    "/get_server_info": {"speculative_algorithm": "EAGLE3", "incremental_streaming_output": False},
    "/v1/tokenize": {"tokens": [1, 2, 3], "count": 3, "max_model_len": 32768},
}


def generated(text: str, tokens: int, ended: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """SGLang: a chunk of /generate, with all of the text so far (TokenizerManager._handle_batch_output)."""
    meta = {"id": "1", "prompt_tokens": 3, "cached_tokens": 1, "completion_tokens": tokens, "finish_reason": ended}
    return {"text": text, "output_ids": [], "meta_info": meta | more}


SGLANG_STREAM = [
    generated("Hel", 1),
    generated("Hello wor", 4),
    # TokenizerManager._calculate_spec_decoding_metrics, with the end of a reply only
    generated("Hello world", 6, {"type": "stop", "matched": 2}, spec_verify_ct=3, spec_accept_length=2.0,
              spec_accept_token_num=3, spec_draft_token_num=9, spec_accept_rate=0.33),
    "[DONE]",
]  # fmt: skip

LM_STUDIO = {
    "/v1/models": models("organization_owner", "text-embedding-nomic", "qwen-idle", "qwen-7b"),
    # "REST API v0" of LM Studio's documentation
    "/api/v0/models": {
        "data": [
            {"id": "text-embedding-nomic", "type": "embeddings", "state": "loaded", "max_context_length": 2048},
            {"id": "qwen-idle", "type": "llm", "state": "not-loaded", "max_context_length": 32768},
            {"id": "qwen-7b", "type": "llm", "state": "loaded", "max_context_length": 32768,
             "loaded_context_length": 8192},
        ]
    },
}  # fmt: skip
LM_STUDIO_STATS = {
    # release note of 0.3.10
    "tokens_per_second": 40.1, "draft_model": "qwen-0.5b", "total_draft_tokens_count": 8,
    "accepted_draft_tokens_count": 2, "rejected_draft_tokens_count": 4, "ignored_draft_tokens_count": 2,
}  # fmt: skip
LM_STUDIO_STREAM = [
    chunk("Hi"), chunk(" there"), chunk("!", "stop"), last_chunk(12, 4, stats=LM_STUDIO_STATS), "[DONE]",
]  # fmt: skip
PLAIN = {"/v1/models": models("openai", "gpt-x", "gpt-y")}
PLAIN_STREAM = [
    chunk("", choice={"delta": {"role": "assistant", "reasoning_content": "Hm."}}), chunk("Hi"), chunk(" there"),
    chunk(None, "stop"), last_chunk(12, 5), "[DONE]",
]  # fmt: skip
