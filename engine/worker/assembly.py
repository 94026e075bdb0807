"""From a configuration to loaded models with their caches and drafters."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from specchat.engine.backends.batch_invariance_check import BatchInvarianceCheck, check_batch_invariance
from specchat.engine.backends.encoder_decoder_runner import EncoderDecoderRunner
from specchat.engine.backends.runner import Runner
from specchat.engine.config import EngineConfig
from specchat.engine.decoding.drafter import Drafter
from specchat.engine.decoding.verify.verifier import Verifier
from specchat.engine.drafters.combined import CombinedDrafter
from specchat.engine.drafters.copying import CopyDrafter
from specchat.engine.drafters.datastore import Datastore
from specchat.engine.drafters.head.drafter import HeadDrafter
from specchat.engine.drafters.head.folder import LoadedHead, find_head, is_head, load_head
from specchat.engine.drafters.look_ahead.folder import LookAhead, is_look_ahead, load_look_ahead
from specchat.engine.drafters.ngram import NGramDrafter
from specchat.engine.drafters.none import NoDrafter
from specchat.engine.drafters.published.find import find_published
from specchat.engine.drafters.published.load import load_published
from specchat.engine.drafters.random_tokens import RandomDrafter
from specchat.engine.drafters.recycling import RecyclingDrafter
from specchat.engine.drafters.suffix import SuffixDrafter
from specchat.engine.drafters.tables.drafter import table_drafters
from specchat.engine.drafters.tables.folder import LoadedTables, is_tables, load_tables
from specchat.engine.errors import EngineError
from specchat.engine.models.encoder_decoder import require_decoder_only
from specchat.engine.models.load import pick_device
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import Progress
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.worker.model_drafters import drafters_of
from specchat.engine.worker.model_notices import INEXACT, notices_of
from specchat.engine.worker.obtain import Model, Obtained, make_runner, obtain_model
from specchat.engine.worker.obtain_drafts import obtain_drafts
from specchat.engine.worker.target_drafters import early_exit_drafters, look_ahead_drafter

_OVERHANG = MAX_GAMMA + 1
"""Spare columns after the context, for the padding of short drafts to long ones."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """Loaded models, caches and drafters of an engine."""

    model: Model
    target: Runner
    draft_runners: tuple[Runner, ...]
    """The passes of each draft model."""
    drafts: tuple[Model, ...]
    """Draft models, none or one, or several that are merged."""
    head: LoadedHead | None
    tables: LoadedTables | None
    drafters: dict[str, Drafter]
    """By name, best first."""
    verifier: Verifier
    weight_bytes: int
    cache_bytes: int
    score_bytes: int
    """Of the layer that scores the head's vocabulary, a part of `cache_bytes`; 0 without a head."""
    notices: tuple[str, ...]
    """What the user should know about these models."""
    smaller: Callable[[], Assembly] | None
    """Makes the same with fewer slots or less context, once this one is deleted; None if this is the smallest."""
    datastore: Datastore = field(default_factory=Datastore)
    """Texts of other chats that the suffix drafter takes drafts from; empty until the app adds some."""
    exact: BatchInvarianceCheck | None = None
    """Measurement of batch-invariant passes; None if not requested."""

    @property
    def graph_bytes(self) -> int:
        """Memory of CUDA graphs besides the caches: logits, distributions."""
        runners = (each.graph_runner for each in (self.target, *self.draft_runners))
        drafters = sum(drafter.graph_bytes for drafter in self.drafters.values())
        return self.verifier.bytes + drafters + sum(runner.bytes for runner in runners if runner)

    @property
    def rounds_by_width(self) -> bool:
        """Whether a token's last bits depend on the width of the pass, by more than greedy decoding forgives."""
        # Where attention is torch's, its last bits can change an activation's code before a quantised layer.
        coarse = self.model.format in ("bfloat16", "float16") or getattr(self.model, "quantized", None) is not None
        return coarse and not (self.exact and self.exact.equal)


_LEAST_CONTEXT = 512
OUT_OF_MEMORY = "the device is out of memory: lower --context or choose a smaller model"
Assemble = Callable[[EngineConfig, Progress], Assembly]


def assemble(config: EngineConfig, progress: Progress) -> Assembly:
    """Fetch what is missing, load the models, make the caches.

    Raises:
        EngineError: a model is unavailable or cannot be loaded or run, or the draft does not fit the target.
    """
    target = obtain_model(config.target, config, pick_device(config.device), progress)
    if len(config.drafts) > 1:
        return _with_models(config, target, progress)
    folder = Path(config.draft or "").expanduser()
    if config.draft and is_look_ahead(folder):
        require_decoder_only(target.model, f"{config.draft} has look-ahead embeddings, which ride in passes of")
        look_ahead = load_look_ahead(folder, target.model)
        return put_together(config, target.model, notices=target.notices, look_ahead=look_ahead)
    tables = _tables(config, target.model)
    if tables is not None:
        return put_together(config, target.model, tables=tables, notices=target.notices)
    head = _head(config, target.model, progress)
    if head is not None or config.draft is None:
        return put_together(config, target.model, head=head, notices=target.notices)
    return _with_models(config, target, progress)


def _with_models(config: EngineConfig, target: Obtained, progress: Progress) -> Assembly:
    """Assembly with draft models."""
    draft, *more = obtain_drafts(config, target.model, progress)
    notices = [notice for each in (target, draft, *more) for notice in each.notices]
    return put_together(config, target.model, draft.model, notices=notices, more=[each.model for each in more])


def _tables(config: EngineConfig, model: Model) -> LoadedTables | None:
    """Counted tables, if the requested draft is a folder of tables."""
    folder = Path(config.draft).expanduser() if config.draft else None
    if folder is None or not is_tables(folder):
        return None
    return load_tables(folder, model.tokenizer, model.vocab_size, model.name)


def _head(config: EngineConfig, model: Model, progress: Progress) -> LoadedHead | None:
    """The requested head; without a draft, one that was made for this target, if any."""
    if config.draft is None:
        folder = find_head(config.heads, model)
        return load_head(folder, model) if folder else None
    folder = Path(config.draft).expanduser()
    published = None if is_head(folder) else find_published(config.draft, ModelStore(config.models), progress)
    if is_head(folder) or published is not None:
        require_decoder_only(model, f"{config.draft} is a draft head, which needs")
    if published is not None:
        return load_published(published, model)
    return load_head(folder, model) if is_head(folder) else None


def put_together(
    config: EngineConfig,
    model: Model,
    draft: Model | None = None,
    head: LoadedHead | None = None,
    tables: LoadedTables | None = None,
    notices: Sequence[str] = (),
    look_ahead: LookAhead | None = None,
    more: Sequence[Model] = (),
) -> Assembly:
    """Caches and drafters for models that are loaded; fewer slots, then less context, where memory is short.

    Args:
        config: slots, context and chunks.
        model: the target.
        draft: a draft model.
        head: a draft head.
        tables: counted tables.
        notices: what the user should know.
        look_ahead: trained embeddings.
        more: draft models to be merged with `draft`.

    Raises:
        EngineError: not even one slot of a small context fits.
    """
    drafts = (draft, *more) if draft else ()
    parts = _Parts(config, model, drafts, head, tables, look_ahead, tuple(notices))
    return _first_that_fits(parts, list(_sizes(config.slots, parts.context)))


@dataclass(frozen=True, slots=True)
class _Parts:
    """Loaded parts of an engine."""

    config: EngineConfig
    model: Model
    drafts: tuple[Model, ...]
    head: LoadedHead | None
    tables: LoadedTables | None
    look_ahead: LookAhead | None
    notices: tuple[str, ...]

    @property
    def context(self) -> int:
        """Requested tokens per slot."""
        return min(self.config.context, *(each.context for each in (self.model, *self.drafts)))

    def reduced(self, slots: int, context: int) -> bool:
        """Whether this is less than requested."""
        return (slots, context) != (self.config.slots, self.context)


def _first_that_fits(parts: _Parts, sizes: Sequence[tuple[int, int]]) -> Assembly:
    """Assembly of the first size that fits into memory."""
    shortage = ""
    for number, (slots, context) in enumerate(sizes, 1):
        left = sizes[number:]
        try:
            return _of_size(parts, slots, context, partial(_first_that_fits, parts, left) if left else None)
        except (EngineError, torch.OutOfMemoryError) as error:
            shortage = str(error) if isinstance(error, EngineError) else OUT_OF_MEMORY
        free_memory()  # the next try needs the memory of this one
    raise EngineError(shortage)


def _of_size(parts: _Parts, slots: int, context: int, smaller: Callable[[], Assembly] | None) -> Assembly:
    config, model, drafts, head, notices = parts.config, parts.model, parts.drafts, parts.head, parts.notices
    target = make_runner(model, slots, context, _OVERHANG, head.head.taps if head else (), exact=config.exact)
    cached = tuple(make_runner(draft, slots, context, _OVERHANG) for draft in drafts)
    exact = check_batch_invariance(target) if config.exact else None
    penalties = Penalties(target.cache.slots, context, target.device)
    never = frozenset(model.tokenizer.all_special_ids) - model.eos_ids
    datastore = Datastore()
    suffix = SuffixDrafter(model.eos_ids, never, datastore)
    of_text: list[Drafter] = [suffix, NGramDrafter(model.eos_ids, never), CopyDrafter(model.eos_ids, never)]
    recycling = RecyclingDrafter(model.eos_ids, branches=target.branches)
    at_random = RandomDrafter(model.vocab_size, target.device)
    drafters = [*of_text, recycling, *early_exit_drafters(model, target, penalties), at_random, NoDrafter()]
    cache_bytes = sum(_cache_bytes(runner) for runner in (target, *cached))
    score_bytes = table_bytes = 0
    if head is not None:
        drafter = HeadDrafter(head.head, head.vocabulary, target, penalties, branches=target.branches)
        with_head = [CombinedDrafter(drafter, suffix, target.device), drafter]
        drafters = [*with_head, *drafters]
        cache_bytes += drafter.bytes
        score_bytes = drafter.score_bytes
    if parts.look_ahead is not None:
        drafters.insert(0, look_ahead_drafter(parts.look_ahead, model, target, penalties))
    if parts.tables is not None:
        bigram, unigram = table_drafters(parts.tables.counts, penalties, model.vocab_size, target, model.eos_ids)
        drafters = [bigram, *drafters[:-1], unigram, NoDrafter()]
        table_bytes = bigram.bytes + unigram.bytes
    if cached:
        names = [draft.name for draft in drafts]
        drafters = [*drafters_of(cached, names, target, penalties, suffix, config.prefill_chunk), *drafters]
    return Assembly(
        model=model,
        target=target,
        draft_runners=cached,
        drafts=drafts,
        head=head,
        tables=parts.tables,
        drafters={drafter.name: drafter for drafter in drafters},
        verifier=Verifier(target, penalties),
        weight_bytes=sum(part.weight_bytes for part in (model, *drafts, head) if part) + table_bytes,
        cache_bytes=cache_bytes,
        score_bytes=score_bytes,
        smaller=smaller,
        datastore=datastore,
        notices=(
            *notices,
            *notices_of(model, target, drafts, cached, (slots, context) if parts.reduced(slots, context) else None),
            *([INEXACT] if exact and not exact.equal else []),
        ),
        exact=exact,
    )


def _cache_bytes(runner: Runner) -> int:
    """Memory of its cache and of encoded sources."""
    return runner.cache.bytes + (runner.source_bytes if isinstance(runner, EncoderDecoderRunner) else 0)


def _sizes(slots: int, context: int) -> Iterator[tuple[int, int]]:
    """Sizes to try: the slots halved down to one, then the context halved down to `_LEAST_CONTEXT`."""
    yield slots, context
    while slots > 1:
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
