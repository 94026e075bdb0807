"""Drafts that are no models: what `--draft` names, or the folder of the target contains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

from specchat.engine.errors import EngineError
from specchat.engine.files import local_path
from specchat.engine.models.checkpoint import MTP, has_weights, read_json, tensor_names
from specchat.engine.models.encoder_decoder import require_decoder_only
from specchat.engine.models.families import family_of
from specchat.engine.models.packed.load import Model
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import Progress
from specchat.engine.registry import PARTS, PartKind


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
        EngineError: it is stated, and missing or broken.
    """
    config = read_json(folder / "config.json")
    config = config.get("text_config") or config
    family = family_of(config.get("model_type"))
    if family is None or not family.mtp:
        return {}
    layers = config.get("mtp_num_hidden_layers")
    if not layers and (not has_weights(folder) or not any(name.startswith(MTP) for name in tensor_names(folder))):
        return {}
    from specchat.engine.drafters.published.mtp import load_mtp

    return {"head": load_mtp(folder, model)}


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
