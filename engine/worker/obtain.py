"""Models as this machine runs them best: quantised on our kernels where they fit, else by their modelling code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from specchat.engine.cache.block_pool import BlockPool
from specchat.engine.config import EngineConfig
from specchat.engine.decoding.backend import Backend
from specchat.engine.drafters.build_context import MOST_MODELS
from specchat.engine.errors import EngineError, check
from specchat.engine.files import local_path
from specchat.engine.kernels.library import KernelError, library, missing
from specchat.engine.models.catalog import PRESETS
from specchat.engine.models.checkpoint import MTP, has_weights, read_json, tensor_names
from specchat.engine.models.families import family_of
from specchat.engine.models.formats import CODES, PACKED, PLAIN, load
from specchat.engine.models.load import load_tokenizer, stated_ends
from specchat.engine.models.packed.decoder_description import OtherFamilyError
from specchat.engine.models.packed.load import Model, PackedModel, check_same_kind, require_decoder_only
from specchat.engine.models.resolve import resolve, tokenizer_folder
from specchat.engine.models.store import ModelStore
from specchat.engine.models.tokenizer import check_vocabularies
from specchat.engine.progress import Progress
from specchat.engine.registry import PARTS, PartKind
from specchat.engine.sequence.template import read_template
from specchat.engine.sequence.template_traits import ignores_messages


class UnfitDraftError(EngineError):
    """Why a published drafter cannot be used; its target runs with the drafter that it would have had without it."""


def names_part(spec: str, store: ModelStore, progress: Progress) -> bool:
    """Whether `--draft` names something other than a draft model."""
    return _find(spec, store, progress) is not None


def load_part(spec: str, model: Model, store: ModelStore, progress: Progress) -> dict[str, Any]:
    """The part that `--draft` names, by its kind; empty for a draft model.

    Raises:
        UnfitDraftError: it is of other authors, and does not fit the target or is broken.
        EngineError: it is of another kind, likewise, or cannot be fetched.
    """
    found = _find(spec, store, progress)
    if found is None:
        return {}
    kind, folder = found
    if kind.needs:
        require_decoder_only(model, f"{spec} {kind.needs}")
    load = getattr(import_module(kind.module), kind.loader)
    with nullcontext() if kind.card else _unfit():
        return {kind.part: load(folder, model)}


def load_own_part(folder: Path, model: Model) -> dict[str, Any]:
    """A part that the folder of the target contains; empty if it states none.

    Raises:
        EngineError: it is stated, and missing, broken or of a kind that is not supported.
    """
    config = read_json(folder / "config.json")
    config = config.get("text_config") or config
    kind, complete = config.get("model_type"), has_weights(folder)  # the folder of a GGUF file has none
    family = family_of(kind)
    if family is None or not family.mtp:
        last = f".layers.{config.get('num_hidden_layers')}."
        has = config.get("num_nextn_predict_layers") and (not complete or _has_weight(folder, MTP, last))
        told = f"{model.name} has a multi-token-prediction layer of {kind}, a kind that is not supported"
        check(not has, f"{told}: name a drafter with --draft")
        return {}
    if not config.get("mtp_num_hidden_layers") and not (complete and _has_weight(folder, MTP)):
        return {}
    from specchat.engine.drafters.published.mtp import load_mtp

    return {"head": load_mtp(folder, model)}


def _has_weight(folder: Path, *parts: str) -> bool:
    """Whether a model has a weight with one of these parts in its name."""
    return any(part in name for name in tensor_names(folder) for part in parts)


def _find(spec: str, store: ModelStore, progress: Progress) -> tuple[PartKind, Path] | None:
    """The folder of what `--draft` names, and its kind; None for a draft model."""
    folder = local_path(spec)
    for kind in PARTS:
        if folder and (folder / kind.card).is_file():
            return kind, folder
    from specchat.engine.drafters.published.find import find_published, kind_of

    with _unfit() if folder else nullcontext():
        published = find_published(spec, store, progress)
        return (kind_of(published), published) if published else None


@contextmanager
def _unfit() -> Iterator[None]:
    """Context manager that turns an EngineError into an UnfitDraftError."""
    try:
        yield
    except EngineError as error:
        raise UnfitDraftError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Obtained:
    """A model that is loaded."""

    model: Model
    notices: tuple[str, ...]
    """Why it does not run as it could, a sentence each."""


def obtain_model(
    spec: str, config: EngineConfig, device: torch.device, progress: Progress, stage: str = "target"
) -> Obtained:
    """Fetch, convert, pack and load what `spec` names; a target has the configuration's tokenizer and template, if any.

    Raises:
        EngineError: it is unavailable, or cannot be loaded or run.
    """
    is_target = stage == "target"
    template = read_template(config.chat_template) if config.chat_template and is_target else None
    own = tokenizer_folder(config.tokenizer, ModelStore(config.models), progress) if config.tokenizer else None
    obtained = _obtain(spec, config, device, progress, stage)
    model = obtained.model
    if own and is_target:
        tokenizer = load_tokenizer(own)
        tokenizer.rows = model.vocab_size
        ends = tokenizer.end_ids(stated_ends(own, tokenizer), model.vocab_size)
        model = replace(model, tokenizer=tokenizer, eos_ids=ends)
    check(not model.tokenizer.refused, model.tokenizer.refused)
    if template is not None:
        changed = copy(model.tokenizer)  # other engines may share the model
        changed.chat_template = template
        ignored = f"the chat template {config.chat_template} leaves out the text of messages: name a Jinja template"
        check(not ignores_messages(changed), ignored)
        model = replace(model, tokenizer=changed)
    return replace(obtained, model=model)


def _obtain(spec: str, config: EngineConfig, device: torch.device, progress: Progress, stage: str) -> Obtained:
    source = resolve(spec, ModelStore(config.models), progress)
    reason = None
    stated, of_preset = config.quantize in ("q8", "q4") or source.is_gguf, runs_preset_file(spec, config, device)
    if config.dtype == "auto" and config.quantize != "none" and (stated or device.type == "cpu"):
        if not (stated or of_preset):
            source.folder()  # raises before it is known whether the kernels run it
        reason = missing()
        if reason is None and device.type == "cuda":
            try:
                return Obtained(load(source, CODES, config, device, stage), ())
            except EngineError as error:
                reason = str(error)
        elif reason is None:
            try:
                model, notice = load(source, PACKED, config, device, stage), library().notice
                return Obtained(model, (notice,) if notice else ())
            except (OtherFamilyError, KernelError) as error:
                reason = str(error) if stated or of_preset else None
                if stated:
                    with suppress(EngineError):
                        model = load(source, CODES, config, device, stage)
                        return Obtained(model, (f"{model.name} runs slower than it could: {reason}",))
            except EngineError as error:
                if of_preset:
                    raise
                reason = str(error)
        if reason and of_preset:
            raise EngineError(f"the file of {spec} cannot run here: {reason}; --quantize none takes its safetensors")
    model = load(source, PLAIN, config, device, stage)
    slower = f"{model.name} runs in {model.format}, slower than it could: {reason}"
    return Obtained(model, (slower,) if reason else ())


def make_runner(
    model: Model,
    slots: int,
    context: int,
    overhang: int,
    taps: Sequence[int] = (),
    *,
    exact: bool = False,
    pool: BlockPool | None = None,
    cache_type: str = "f16",
) -> Backend:
    """Backend of a model, with a new cache, which takes blocks of `pool` for a draft model.

    Raises:
        EngineError: the cache does not fit into memory or cannot be of this type, or the model cannot be exact.
    """
    is_packed = isinstance(model, PackedModel)
    if cache_type != "f16" and not is_packed:
        reason = f"{model.name} does not run as a quantised model on the CPU"
        raise EngineError(f"a cache of type {cache_type} is not available, as {reason}: leave --cache-type at f16")
    options = {"cache_type": cache_type} if is_packed else {}
    module = import_module(model.backend)  # where it needs transformers' modelling code: seconds
    made: Backend = module.build(model, slots, context, overhang, taps, exact=exact, pool=pool, **options)
    return made


def runs_preset_file(spec: str, config: EngineConfig, device: torch.device) -> bool:
    """Whether `spec` is a preset whose quantised file runs, not its safetensors."""
    return spec in PRESETS and PRESETS[spec].takes_file(config, gpu=device.type != "cpu")


def obtain_drafts(config: EngineConfig, target: Model, progress: Progress) -> list[Obtained]:
    """The draft models that are named.

    Raises:
        EngineError: one is unavailable, cannot be loaded or run, or does not fit the target; or they cannot be merged.
    """
    if len(config.drafts) > 1:
        _check_several(config, progress)
    return [_obtain_draft(spec, config, target, progress) for spec in config.drafts]


def _obtain_draft(spec: str, config: EngineConfig, target: Model, progress: Progress) -> Obtained:
    draft = obtain_model(spec, config, target.device, progress, stage="draft")
    try:
        check_same_kind(target, draft.model)
        check_vocabularies(target.tokenizer, draft.model.tokenizer, target.eos_ids, draft.model.eos_ids)
    except EngineError as error:
        if len(config.drafts) > 1:
            raise EngineError(f"{spec} cannot be one of the drafts: {error}") from error
        raise
    return draft


def _check_several(config: EngineConfig, progress: Progress) -> None:
    """Refuse drafts that cannot be merged before any is loaded."""
    told = f"{len(config.drafts)} draft models are named, and at most {MOST_MODELS} can be merged: leave some out"
    check(len(config.drafts) <= MOST_MODELS, told)
    for spec in config.drafts:
        told = f"{spec} is not a draft model, and only draft models are merged: name it alone or leave it out"
        check(not names_part(spec, ModelStore(config.models), progress), told)
