"""Draft models for a target: one, or several that are merged."""

from __future__ import annotations

from specchat.engine.config import EngineConfig
from specchat.engine.drafters.registry import MOST_MODELS, names_part
from specchat.engine.errors import EngineError
from specchat.engine.models.encoder_decoder import check_same_kind
from specchat.engine.models.store import ModelStore
from specchat.engine.models.tokenizer import check_vocabularies
from specchat.engine.progress import Progress
from specchat.engine.worker.obtain import Model, Obtained, obtain_model


def obtain_drafts(config: EngineConfig, target: Model, progress: Progress) -> list[Obtained]:
    """The draft models that are named.

    Raises:
        EngineError: one is unavailable, cannot be loaded or run, or does not fit the target; or they cannot be merged.
    """
    several = len(config.drafts) > 1
    if several:
        _check_several(config, progress)
    return [_obtain(spec, config, target, progress, several=several) for spec in config.drafts]


def _obtain(spec: str, config: EngineConfig, target: Model, progress: Progress, *, several: bool) -> Obtained:
    draft = obtain_model(spec, config, target.device, progress, stage="draft")
    try:
        check_same_kind(target, draft.model)
        check_vocabularies(target.tokenizer, draft.model.tokenizer, target.eos_ids, draft.model.eos_ids)
    except EngineError as error:
        if several:
            raise EngineError(f"{spec} cannot be one of the drafts: {error}") from error
        raise
    return draft


def _check_several(config: EngineConfig, progress: Progress) -> None:
    """Refuse drafts that cannot be merged before any is loaded."""
    if len(config.drafts) > MOST_MODELS:
        raise EngineError(
            f"{len(config.drafts)} draft models are named, and at most {MOST_MODELS} can be merged: leave some out"
        )
    for spec in config.drafts:
        if names_part(spec, ModelStore(config.models), progress):
            raise EngineError(f"{spec} is no draft model, and only those are merged: name it alone or leave it out")
