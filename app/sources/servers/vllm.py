"""vLLM: with `--per-request-spec-decode-metrics detailed`, its last chunk reports what every pass accepted.

Source: vllm-project/vllm, `docs/features/speculative_decoding/acceptance_metrics.md` (fields of
`metrics.speculative_decoding`, which comes with the usage), `vllm/entrypoints/openai/chat_completion/protocol.py`
(`logprobs`), `vllm/entrypoints/openai/engine/protocol.py` (`StreamOptions.continuous_usage_stats`, `ModelCard`) and
`vllm/entrypoints/serve/instrumentator/basic.py` (`/version`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specchat.app.sources.servers.protocol import Chunk, count, path, read_chunk
from specchat.app.sources.servers.server import Ask, Call, Listing, ObservedReader, ObservedServer, observed_ready
from specchat.engine import MOST_DRAFTED, Event, Request, Step, Totals

_EXTENSIONS = {"top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repetition_penalty"}


def find_vllm(listing: Listing) -> ObservedServer | None:
    """The server, if its models are vLLM's and it reports its version."""
    if not listing.owned_by("vllm") or listing.ask("/version", None) is None:
        return None
    model = listing.model()
    ready = observed_ready("vLLM", model, context=count(listing.entry(model), "max_model_len"))
    return ObservedServer(ready, model, VLLMReader, _EXTENSIONS, _prepare)


def _prepare(request: Request, body: dict[str, Any], ask: Ask) -> Call:  # noqa: ARG001
    """Request the text of each token, and a token count in every chunk."""
    body["stream_options"]["continuous_usage_stats"] = True
    return Call(path(request), body | ({"logprobs": True} if request.messages else {}))


class VLLMReader(ObservedReader):
    """Makes tokens of unknown fate of chunks, and `Totals` of the last one."""

    def read(self, values: dict[str, Any]) -> Iterator[Event]:
        """The tokens of this chunk, or the counts at the end."""
        chunk = read_chunk(values)
        self._stream.finish(chunk.reason)
        if not values.get("choices"):
            yield self._totals(chunk, values.get("metrics"))
            return
        yield from self._stream.admit(chunk.prompt_tokens)
        yield from self._stream.unknown(self._stream.text_of(chunk), chunk.pieces, chunk.tokens)

    def _totals(self, chunk: Chunk, metrics: object) -> Totals:
        said = metrics.get("speculative_decoding") if isinstance(metrics, Mapping) else None
        drafted, accepted = count(said, "num_draft_tokens"), count(said, "num_accepted_draft_tokens")
        steps = _steps(said) if isinstance(said, Mapping) else None
        passes = None
        if chunk.tokens is not None and accepted is not None:
            passes = chunk.tokens - accepted  # each pass emits one token beyond the draft
        return self._stream.totals(chunk, passes=passes, drafted=drafted, accepted=accepted, steps=steps)


def _steps(said: Mapping[str, Any]) -> tuple[Step, ...] | None:
    """Every pass that tested drafts; None if the server reports only sums (`summary`)."""
    drafted, accepted = said.get("per_step_drafted"), said.get("per_step_accepted")
    if not isinstance(drafted, Sequence) or not isinstance(accepted, Sequence) or len(drafted) != len(accepted):
        return None
    steps = tuple(Step(d, a) for d, a in zip(drafted, accepted, strict=True))
    whole = all(type(number) is int for step in steps for number in step)
    return steps if whole and all(0 <= step.accepted <= step.drafted <= MOST_DRAFTED for step in steps) else None
