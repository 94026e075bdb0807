"""What users are told about the loaded models: `Ready`, and notices and performance warnings, each of them once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from specchat.engine.decoding.backend import Backend
from specchat.engine.events import Captured, Notice, Outbox, Ready
from specchat.engine.models.catalog import chat_sampling
from specchat.engine.models.packed.load import Model
from specchat.engine.sequence.call_formats import find_call_format
from specchat.engine.sequence.template_traits import thinking_values, words_of

if TYPE_CHECKING:
    from specchat.engine.worker.assembly import Assembly

INEXACT = (
    "exact mode cannot be given here: on this device the same token gets other bits at another place of a pass, so "
    "greedy texts may differ where two tokens are close; --dtype float32 makes that rare"
)
UNREPEATABLE = (
    "in {dtype} a greedy reply may differ from run to run: gamma adapts to measured times, and a pass of another width "
    "rounds otherwise; a fixed --gamma or --dtype float32 repeats"
)


class Notices:
    """Emits notices to the users of an engine, each of them once.

    Args:
        outbox: for events that concern the engine as a whole.
        clock: seconds since the engine started.
    """

    def __init__(self, outbox: Outbox, clock: Callable[[], float]) -> None:
        self._outbox = outbox
        self._clock = clock
        self._told: set[str] = set()

    def tell(self, texts: Sequence[str]) -> None:
        """Emit the notices that have not been emitted."""
        for text in texts:
            if text not in self._told:
                self._told.add(text)
                self._outbox.put(Notice(None, text, self._clock()))


def notices_of(
    model: Model, target: Backend, drafts: Sequence[Model], runners: Sequence[Backend], reduced: tuple[int, int] | None
) -> list[str]:
    """Notices about a target and its draft models.

    Args:
        model: the target.
        target: its passes.
        drafts: draft models.
        runners: the passes of each.
        reduced: slots and context, if less than requested.
    """
    notices = []
    if reduced:
        notices.append(f"memory is short: there is room for {reduced[0]} replies at once of {reduced[1]} tokens each")
    if not model.tokenizer.chat_template and model.start is None:
        notices.append(f"{model.name} is a base model, without a chat template: it continues text and may not answer")
    if model.recommended.notice:
        notices.append(f"{model.name}: {model.recommended.notice}")
    notices += [
        f"the draft {draft.name} ({draft.weight_bytes / 1e9:.2f} GB) is not smaller than the target {model.name} "
        f"({model.weight_bytes / 1e9:.2f} GB): drafting with it cannot pay"
        for draft in drafts
        if draft.weight_bytes >= model.weight_bytes
    ]
    notices += [
        f"{each.name} reads every text with its factors for long ones, as the context is {passes.context}: with "
        f"--context {passes.short_context} it uses those it was first trained with"
        for each, passes in zip((model, *drafts), (target, *runners), strict=True)
        if passes.short_context is not None
    ]
    return notices


def ready_of(made: Assembly, captured: Captured, plain_s: tuple[float, ...], spec: str, at: float) -> Ready:
    """The event that the engine is ready.

    Args:
        made: what the engine runs with.
        captured: the CUDA graphs so far.
        plain_s: seconds of plain passes.
        spec: `EngineConfig.target`.
        at: the time.
    """
    target, device, tokenizer = made.target, made.target.device, made.model.tokenizer
    pool, reserved = target.cache.pool, not target.capabilities.packed
    values, on_gpu = thinking_values(tokenizer), device.type == "cuda"
    return Ready(
        target=made.model.name,
        draft=", ".join(part.name for part in (*made.drafts, *made.parts.values())) or None,
        drafters=tuple(made.drafters),
        device=device.type,
        device_name=torch.cuda.get_device_name(device) if on_gpu else "CPU",
        device_uuid=str(torch.cuda.get_device_properties(device).uuid) if on_gpu else "",
        dtype=made.model.format,
        context=target.context,
        model_context=made.model.context,
        slots=target.cache.slots,
        weight_bytes=made.weight_bytes,
        cache_bytes=made.cache_bytes + made.graph_bytes if reserved else min(made.cache_bytes, pool.bytes),
        slot_bytes=target.cache.columns * target.cache.column_bytes + target.cache.state_bytes,
        kept_bytes=pool.bytes,
        state_bytes=target.cache.state_bytes,
        graphs=captured.graphs,
        graph_bytes=captured.graph_bytes,
        warm_up_s=captured.warm_up_s,
        at=at,
        plain_s=plain_s,
        thinking_switch=bool(values),
        thinking_values=tuple(values),
        template_words=words_of(tokenizer.chat_template),
        conversations=made.model.start is None,
        tools=find_call_format(tokenizer) is not None,
        sampling=chat_sampling(spec, made.model.recommended),
    )
