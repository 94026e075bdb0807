"""Assembly of an engine from a configuration: loaded models with their caches and drafters."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from math import inf
from typing import Any

import torch

from specchat.engine.backends.batch_invariant import BatchInvarianceCheck, check_batch_invariance
from specchat.engine.cache.kv_cache import column_bytes
from specchat.engine.cache.paged_cache import TYPES
from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.config import EngineConfig
from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.drafter import Drafter
from specchat.engine.device.device import available_memory, pick_device, unused_gpu
from specchat.engine.device.graphs import GraphPool
from specchat.engine.drafters.build_context import BuildContext, DraftPart
from specchat.engine.drafters.datastore import Datastore
from specchat.engine.drafters.head.folder import LoadedHead, find_head
from specchat.engine.errors import EngineError, errors_as
from specchat.engine.models.catalog import PRESETS, is_hub_id
from specchat.engine.models.packed.load import Model, PackedModel
from specchat.engine.models.resolve import resolve
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import Progress
from specchat.engine.registry import DRAFTERS, Condition
from specchat.engine.request import MAX_GAMMA
from specchat.engine.worker.notices import INEXACT, notices_of
from specchat.engine.worker.obtain import (
    UnfitDraftError,
    load_own_part,
    load_part,
    make_runner,
    obtain_drafts,
    obtain_model,
    runs_preset_file,
)


class Drafters(Mapping[str, Drafter]):
    """The available drafters by name, best first; each is built when it is first looked up.

    Args:
        context: what they are built from.
    """

    def __init__(self, context: BuildContext) -> None:
        self._context = context
        context.drafters = self
        self._entries = {name: entry for name, entry in DRAFTERS.items() if _is_met(entry.condition, context)}
        self.built: dict[str, Drafter] = {}
        """The drafters that have been built."""
        self._warm = False
        self.step_seconds: dict[str, float] = {}
        """Seconds of a draft step for one row, by drafter; only of drafters that could be timed while warming up."""

    def build(self) -> None:
        """Build all that do not wait for a request."""
        for name, entry in self._entries.items():
            if not entry.on_request:
                self[name]

    def warm_up(self) -> None:
        """Warm up all that have been built; each drafter that is built later is warmed up when it is built."""
        self._warm = True
        for name, drafter in self.built.items():
            self._warm_up(name, drafter)

    def _warm_up(self, name: str, drafter: Drafter) -> None:
        seconds = drafter.warm_up()
        if seconds is not None:
            self.step_seconds[name] = seconds

    def __getitem__(self, name: str) -> Drafter:
        if name not in self.built:
            drafter: Drafter = import_module(self._entries[name].module).build(self._context, name)
            if self._warm:
                self._warm_up(name, drafter)
            self.built[name] = drafter
        return self.built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _is_met(condition: Condition, context: BuildContext) -> bool:
    """Whether what a drafter needs is loaded."""
    backends = [backend for _, backend in context.draft_models]
    return (
        (not condition.parts or any(part in context.parts for part in condition.parts))
        and len(backends) >= condition.models
        and (not condition.trees or backends[0].device.type == "cpu" or backends[0].capabilities.captured)
    )


_OVERHANG = MAX_GAMMA + 1
"""Columns kept spare beyond the context, for the padding of short drafts next to long ones."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """Loaded models, caches and drafters of an engine."""

    model: Model
    target: Backend
    draft_runners: tuple[Backend, ...]
    """The passes of each draft model."""
    drafts: tuple[Model, ...]
    """Draft models, none or one, or several that are merged."""
    parts: Mapping[str, DraftPart]
    """Heads, tables or embeddings that drafters use, by kind."""
    drafters: Drafters
    """Drafters by name, best first."""
    weight_bytes: int
    cache_bytes: int
    score_bytes: int
    """Memory of the layers that score drafters' vocabularies, a part of `cache_bytes`."""
    notices: tuple[str, ...]
    """Notices about these models for the user."""
    smaller: Callable[[], Assembly] | None
    """Makes the same with fewer slots or less context, once this one is deleted; None if this is the smallest."""
    datastore: Datastore = field(default_factory=Datastore)
    """Texts of other chats that the suffix drafter takes drafts from; initially empty."""
    exact: BatchInvarianceCheck | None = None
    """Measurement of batch-invariant passes; None if not requested."""

    @property
    def graph_bytes(self) -> int:
        """Memory that CUDA graphs read and write next to the caches: logits, distributions."""
        drafters = sum(drafter.graph_bytes for drafter in self.drafters.built.values())
        return drafters + sum(backend.graph_bytes for backend in (self.target, *self.draft_runners))

    @property
    def rounds_by_width(self) -> bool:
        """Whether a token's last bits depend on the width of the pass, by more than greedy decoding forgives."""
        # Where attention is torch's, its last bits can turn an activation's code before a quantised layer.
        coarse = self.model.format in ("bfloat16", "float16") or getattr(self.model, "quantized", None) is not None
        return coarse and not (self.exact and self.exact.equal)

    @property
    def same_bits(self) -> bool:
        """Whether a token's bits depend on the text alone. A draw needs that: less turns it than a greedy choice."""
        return self.target.capabilities.packed or bool(self.exact and self.exact.equal)

    def warm_up(self) -> None:
        """Choose kernels before a round is timed, and plan what is to be captured.

        Raises:
            torch.OutOfMemoryError: there is not enough memory for it.
        """
        supports = {id(support): support for drafter in self.drafters.built.values() for support in drafter.supports}
        self.target.warm_up(tuple(supports.values()))
        for backend in self.draft_runners:
            backend.warm_up()
        self.drafters.warm_up()

    @property
    def graph_pools(self) -> list[GraphPool]:
        """Captured and planned CUDA graphs of its models; empty on a CPU."""
        return [each.graph_pool for each in (self.target, *self.draft_runners) if each.graph_pool]

    @property
    def graphs(self) -> tuple[int, int]:
        """Number of captured and of planned CUDA graphs."""
        pools = self.graph_pools
        return sum(pool.count for pool in pools), sum(len(pool.planned) for pool in pools)

    def capture_next(self, below: float = inf) -> bool:
        """Capture what is planned with the lowest rank; return whether anything is planned with a rank below this.

        Raises:
            torch.OutOfMemoryError: there is not enough memory for it.
        """
        pool = min(self.graph_pools, key=lambda pool: pool.next_rank, default=None)
        if pool is None or pool.next_rank >= below:
            return False
        pool.capture_next()
        return True

    def performance_warnings(self) -> list[str]:
        """Reasons why the models run slower than they could here, a sentence each."""
        models, backends = (self.model, *self.drafts), (self.target, *self.draft_runners)
        return [
            f"{model.name}: {warning}: it runs slower than it could"
            for model, backend in zip(models, backends, strict=True)
            for warning in backend.performance_warnings
        ]


_LEAST_CONTEXT = 512
_RESERVED_CONTEXT = 4096
"""Default for models whose caches reserve memory for every slot."""
_CACHE_SHARE = 0.25
"""Share of the memory that is free once the models are loaded; a CPU takes it when texts are read."""
OUT_OF_MEMORY = "the device is out of memory: lower --context or choose a smaller model"
memory_errors = partial(errors_as, lambda _: OUT_OF_MEMORY, torch.OutOfMemoryError)
"""Context manager that turns a device that is out of memory into an EngineError."""
Assemble = Callable[[EngineConfig, Progress], Assembly]


def assemble(config: EngineConfig, progress: Progress) -> Assembly:
    """Fetch what is missing, load the models, make the caches.

    Raises:
        EngineError: a model is unavailable, or cannot be loaded or run, or the draft does not fit the target.
    """
    target = obtain_model(config.target, config, pick_device(config.device), progress)
    unused = unused_gpu() if config.device == "auto" else None
    try:
        parts, more_notices = _load_parts(config, target.model, progress)
    except UnfitDraftError as error:
        config = replace(config, draft=None)
        parts, more_notices = _load_parts(config, target.model, progress)
        more_notices = [f"{error}. Until then drafts are as without it", *more_notices]
    drafts = obtain_drafts(config, target.model, progress) if config.draft and not parts else []
    more_notices += [part.notice for part in parts.values() if isinstance(part, LoadedHead)]
    of_models = [notice for each in (target, *drafts) for notice in each.notices]
    notices = [notice for notice in (unused, *of_models, *more_notices) if notice]
    draft, more = drafts[0].model if drafts else None, [each.model for each in drafts[1:]]
    return assemble_loaded(config, target.model, draft, notices=notices, more=more, **parts)


def _load_parts(config: EngineConfig, model: Model, progress: Progress) -> tuple[dict[str, Any], list[str]]:
    """The draft, unless it is a model: by default a head for the target, its preset's or its own; and notices."""
    store = ModelStore(config.models)
    if len(config.drafts) > 1:
        return {}, []
    if config.draft:
        return load_part(config.draft, model, store, progress), []
    if folder := find_head(config.heads, model):
        return load_part(str(folder), model, store, progress), []
    preset = PRESETS.get(config.target)
    draft = preset.drafter(gpu=model.device.type == "cuda") if preset else ""
    try:
        if is_hub_id(draft):
            return load_part(draft, model, store, progress), []
        source = resolve(config.target, store, progress)
        gguf = source.gguf() if runs_preset_file(config.target, config, model.device) else None
        folder = source.converted(gguf, weights=False) if gguf else source.folder(weights=False)
        return load_own_part(folder, model), []
    except EngineError as error:
        return {}, [f"{error}. Until then drafts come from repeated text alone"]


def assemble_loaded(
    config: EngineConfig,
    model: Model,
    draft: Model | None = None,
    *,
    notices: Sequence[str] = (),
    more: Sequence[Model] = (),
    **parts: DraftPart | None,
) -> Assembly:
    """Caches and drafters for models that are loaded; fewer slots, then less context, where memory is short.

    Args:
        config: slots, context and chunks.
        model: the target.
        draft: a draft model.
        notices: what the user should know.
        more: draft models to be merged with `draft`.
        parts: parts of drafters, by kind (`engine.registry.PARTS`).

    Raises:
        EngineError: not even one slot of a small context fits.
    """
    drafts = (draft, *more) if draft else ()
    given = {kind: part for kind, part in parts.items() if part is not None}
    memory = cache_memory(config, model.device)
    stored = ((model, config.cache_type), *((each, "f16") for each in drafts))
    context = min(_context(each, config.context, memory, cache_type) for each, cache_type in stored)
    loaded = _Loaded(config, model, drafts, given, tuple(notices), context)
    return _first_that_fits(loaded, list(_sizes(loaded)))


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Loaded parts of an engine."""

    config: EngineConfig
    model: Model
    drafts: tuple[Model, ...]
    parts: Mapping[str, DraftPart]
    notices: tuple[str, ...]
    context: int
    """Most tokens of a text, as requested, or as the models and memory allow."""


def _context(model: Model, requested: int | None, memory: int | None, cache_type: str) -> int:
    """Tokens of a text as requested; else all that a model reads with the rotary factors that it was first trained
    with, or fewer if memory cannot hold their keys and values."""
    if requested is not None:
        return min(requested, model.context)
    if not isinstance(model, PackedModel):
        return min(model.context, _RESERVED_CONTEXT)
    context = model.short_context(model.context) or model.context
    if memory is not None:
        held = memory // max(column_bytes(model.cached, TYPES[cache_type]), 1) - _OVERHANG - BLOCK
        context = min(context, max(held, _LEAST_CONTEXT))
    return context


def cache_memory(config: EngineConfig, device: torch.device) -> int | None:
    """Bytes for the blocks of all caches: as requested, else a part of what is free; None if that is not known."""
    free = available_memory(device)
    if config.cache_memory is None:
        return None if free is None else int(free * _CACHE_SHARE)
    wanted = int(config.cache_memory * 1e9)
    return wanted if free is None else min(wanted, free)


def _first_that_fits(loaded: _Loaded, sizes: Sequence[tuple[int, int]]) -> Assembly:
    """An assembly with the first of these slots and contexts that there is memory for."""
    shortage = EngineError("")
    for number, (slots, context) in enumerate(sizes, 1):
        left = sizes[number:]
        try:
            return _of_size(loaded, slots, context, partial(_first_that_fits, loaded, left) if left else None)
        except (EngineError, torch.OutOfMemoryError) as error:
            # Not the error itself, whose traceback holds the memory of this try.
            shortage = type(error)(str(error)) if isinstance(error, EngineError) else EngineError(OUT_OF_MEMORY)
        free_memory()  # the next try needs the memory of this one
    raise shortage


def _of_size(loaded: _Loaded, slots: int, context: int, smaller: Callable[[], Assembly] | None) -> Assembly:
    config, model, drafts, notices = loaded.config, loaded.model, loaded.drafts, loaded.notices
    taps = next((part.taps for part in loaded.parts.values() if part.taps), ())
    target = make_runner(model, slots, context, _OVERHANG, taps, exact=config.exact, cache_type=config.cache_type)
    runners = tuple(make_runner(draft, slots, context, _OVERHANG, pool=target.cache.pool) for draft in drafts)
    exact = check_batch_invariance(target) if config.exact else None
    built = BuildContext(
        model=model,
        target=target,
        datastore=Datastore(),
        draft_models=[(draft.name, runner) for draft, runner in zip(drafts, runners, strict=True)],
        parts=dict(loaded.parts),
        prefill_chunk=config.chunk_on(model.device.type),
    )
    drafters = Drafters(built)
    drafters.build()
    made = drafters.built.values()
    reduced = (slots, context) if (slots, context) != (config.slots, loaded.context) else None
    return Assembly(
        model=model,
        target=target,
        draft_runners=runners,
        drafts=drafts,
        parts=loaded.parts,
        drafters=drafters,
        weight_bytes=sum(part.weight_bytes for part in (model, *drafts, *loaded.parts.values(), *made)),
        cache_bytes=sum(each.cache.bytes for each in (target, *runners)) + sum(each.cache_bytes for each in made),
        score_bytes=sum(each.score_bytes for each in made),
        smaller=smaller,
        datastore=built.datastore,
        notices=(
            *notices,
            *notices_of(model, target, drafts, runners, reduced),
            *([INEXACT] if exact and not exact.equal else []),
        ),
        exact=exact,
    )


def _sizes(loaded: _Loaded) -> Iterator[tuple[int, int]]:
    """Sizes to try: slots halved down to one if they take memory, then the context down to `_LEAST_CONTEXT`."""
    slots, context = loaded.config.slots, loaded.context
    reserved = not all(isinstance(each, PackedModel) for each in (loaded.model, *loaded.drafts))
    yield slots, context
    while slots > 1 and reserved:
        slots //= 2
        yield slots, context
    while context > _LEAST_CONTEXT:
        context = max(context // 2, _LEAST_CONTEXT)
        yield slots, context


def free_memory() -> None:
    """Collect garbage and empty the CUDA cache."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
