"""From a configuration to loaded models with their caches and drafters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from engine.cached_model import CachedModel
from engine.config import EngineConfig
from engine.drafters.base import Drafter
from engine.drafters.combined import CombinedDrafter
from engine.drafters.head import HeadDrafter
from engine.drafters.model import ModelDrafter
from engine.drafters.ngram import NGramDrafter
from engine.drafters.none import NoDrafter
from engine.errors import EngineError
from engine.exact_check import ExactCheck, check_exact
from engine.head.folder import LoadedHead, find_head, is_head, load_head
from engine.loading import LoadedModel, pick_device, pick_dtype
from engine.model_store import ModelStore
from engine.penalties import Penalties
from engine.progress import Progress
from engine.request import MAX_GAMMA
from engine.resolve import resolve
from engine.shelf import shared_model
from engine.vocabulary import check_vocabularies

_OVERHANG = MAX_GAMMA + 1
"""Columns kept spare beyond the context, for the padding of short drafts beside long ones."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """Everything that rounds are run with."""

    model: LoadedModel
    target: CachedModel
    drafting: CachedModel | None
    """The draft model's passes."""
    draft: LoadedModel | None
    head: LoadedHead | None
    drafters: dict[str, Drafter]
    """By name, best first."""
    penalties: Penalties
    weight_bytes: int
    cache_bytes: int
    notices: tuple[str, ...]
    """What the user should know about these models."""
    exact: ExactCheck | None = None
    """What passes of fixed shape give here; None where they were not asked for."""


_LEAST_CONTEXT = 512
INEXACT = (
    "exact mode cannot be given here: on this device the same token gets other bits at another place of a pass, so "
    "greedy texts may differ where two tokens are close; --dtype float32 makes that rare"
)

Assemble = Callable[[EngineConfig, Progress], Assembly]


def assemble(config: EngineConfig, progress: Progress) -> Assembly:
    """Fetch what is missing, load the models, make the caches.

    Raises:
        EngineError: a model cannot be had, loaded or run, or the draft does not fit the target.
    """
    device = pick_device(config.device)
    store = ModelStore(config.models)
    folder = resolve(config.target, store, progress)
    dtype = pick_dtype(config.dtype, device, folder)
    model = shared_model(folder, device, dtype, progress)
    draft, head = _draft(config, model, store, progress)
    return put_together(config, model, draft, head)


def _draft(
    config: EngineConfig, model: LoadedModel, store: ModelStore, progress: Progress
) -> tuple[LoadedModel | None, LoadedHead | None]:
    """The draft that is asked for; else a head that was made for this target, if there is one."""
    if config.draft is None:
        folder = find_head(config.heads, model)
        return None, load_head(folder, model) if folder else None
    if is_head(folder := Path(config.draft).expanduser()):
        return None, load_head(folder, model)
    device, dtype = model.model.device, model.model.dtype
    draft = shared_model(resolve(config.draft, store, progress), device, dtype, progress, stage="draft")
    check_vocabularies(model.tokenizer, draft.tokenizer, model.eos_ids, draft.eos_ids)
    return draft, None


def put_together(
    config: EngineConfig, model: LoadedModel, draft: LoadedModel | None = None, head: LoadedHead | None = None
) -> Assembly:
    """Caches and drafters for models that are loaded; fewer slots, then less context, where memory is short.

    Raises:
        EngineError: not even one slot of a small context fits.
    """
    limit = min(config.context, model.context, draft.context if draft else model.context)
    for slots, context in _sizes(config.slots, limit):
        try:
            taps = head.head.shape.taps if head else ()
            target = CachedModel(model.model, slots, context, _OVERHANG, taps, exact=config.exact)
            cached = CachedModel(draft.model, slots, context, _OVERHANG) if draft else None
            break
        except EngineError as error:
            shortage = error
    else:
        raise shortage
    exact = check_exact(target) if config.exact else None
    penalties = Penalties(target.cache.slots, context, target.device)
    never = frozenset(model.tokenizer.all_special_ids) - model.eos_ids
    ngram = NGramDrafter(model.eos_ids, never)
    drafters: list[Drafter] = [ngram, NoDrafter()]
    cache_bytes = target.cache.bytes + (cached.cache.bytes if cached else 0)
    if head is not None:
        drafter = HeadDrafter(head.head, head.vocabulary, target, penalties, branches=not config.exact)
        drafters = [CombinedDrafter(drafter, ngram, context, target.device), drafter, *drafters]
        cache_bytes += drafter.bytes
    if cached is not None:
        drafters.insert(0, ModelDrafter(cached, penalties, model.vocab_size, config.prefill_chunk))
    return Assembly(
        model=model,
        target=target,
        drafting=cached,
        draft=draft,
        head=head,
        drafters={drafter.name: drafter for drafter in drafters},
        penalties=penalties,
        weight_bytes=model.weight_bytes + sum(part.weight_bytes for part in (draft, head) if part),
        cache_bytes=cache_bytes,
        notices=(
            *_notices(model, draft, (slots, context) != (config.slots, limit) and (slots, context)),
            *([INEXACT] if exact and not exact.equal else []),
        ),
        exact=exact,
    )


def _sizes(slots: int, context: int) -> Iterator[tuple[int, int]]:
    """What to try: the slots halved down to one, then the context halved down to `_LEAST_CONTEXT`."""
    yield slots, context
    while slots > 1:
        slots //= 2
        yield slots, context
    while context > _LEAST_CONTEXT:
        context = max(context // 2, _LEAST_CONTEXT)
        yield slots, context


def warm_up(made: Assembly) -> list[str]:
    """Let the kernels choose their ways, and be compiled, before the first round is timed.

    Returns:
        What the user should know about it.
    """
    notices = []
    for name, passes in ((made.model.name, made.target), (made.draft and made.draft.name, made.drafting)):
        if passes is None:
            continue
        # One row and several, one token and several: what is compiled for these serves for all.
        for rows in {1, passes.cache.slots if passes.device.type == "cuda" else 1}:
            for length in (1, 5):
                tokens = torch.zeros(rows, length, dtype=torch.long, device=passes.device)
                passes.forward(tokens, range(rows), [0] * rows).amax().item()
        notices += [f"{name}: {hindrance}: it runs slower than it could" for hindrance in passes.hindrances]
    return notices


def _notices(model: LoadedModel, draft: LoadedModel | None, reduced: tuple[int, int] | Literal[False]) -> list[str]:
    notices = []
    if reduced:
        notices.append(f"memory is short: there is room for {reduced[0]} replies at once of {reduced[1]} tokens each")
    if not model.has_chat_template:
        notices.append(f"{model.name} has no chat template: using a plain one")
    if draft is not None and draft.weight_bytes >= model.weight_bytes:
        notices.append(
            f"the draft {draft.name} ({draft.weight_bytes / 1e9:.2f} GB) is not smaller than the target {model.name} "
            f"({model.weight_bytes / 1e9:.2f} GB): drafting with it cannot pay"
        )
    return notices
