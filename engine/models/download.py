"""Downloads: what a configuration lacks on this machine, its size, and the download itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from specchat.engine.config import EngineConfig
from specchat.engine.files import local_path
from specchat.engine.models.catalog import PRESETS, Preset, hub_folder, is_hub_id
from specchat.engine.models.hub import HUB_ID, cached_snapshot, download_bytes, draft_files, fetch_from_hub
from specchat.engine.models.machine import has_gpu
from specchat.engine.models.resolve import check_named, resolve
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import Progress


def is_installed(config: EngineConfig) -> bool:
    """Whether nothing must be downloaded to load the target and the draft models; needs no network."""
    return next(_absent(config), None) is None


def downloads(config: EngineConfig) -> dict[str, int]:
    """Bytes that must be downloaded before a configuration can be loaded, by model; a preset with its drafter.

    Raises:
        EngineError: the target's name is that of no model, or the hub does not answer, or has none.
    """
    check_named(config.target, ModelStore(config.models))
    return {name: size() for name, size in _absent(config)}


def pull(spec: str, store: ModelStore, progress: Progress) -> Path:
    """Download what a load with default settings uses; returns the target's folder.

    Arguments and errors: `resolve`, `Source.folder`.
    """
    config, preset, source = EngineConfig(spec, store.folder), PRESETS.get(spec), resolve(spec, store, progress)
    draft = preset.drafter(gpu=_on_gpu(config)) if preset else ""
    if is_hub_id(draft) and _is_absent(draft, store):
        store.find_or_build(
            hub_folder(draft), draft, lambda work: fetch_from_hub(draft, work / "model", progress), progress
        )
    takes_file = preset is not None and _takes_file(preset, config)
    if not (takes_file or source.is_gguf):
        return source.folder()
    from specchat.engine.kernels.library import KernelError, missing
    from specchat.engine.models.formats import packed_folder  # imports torch
    from specchat.engine.models.packed.decoder_description import OtherFamilyError

    if takes_file:
        return packed_folder(source, "auto")
    if missing() is not None:
        return source.folder()
    # The file is packed for the kernels, or kept where they do not run it.
    with suppress(OtherFamilyError, KernelError):
        if not has_gpu():
            packed_folder(source, "auto")
            return source.folder(weights=False)
    source.file()
    return source.folder(weights=False)


def _absent(config: EngineConfig) -> Iterator[tuple[str, Callable[[], int]]]:
    """Models that must be downloaded, each with a function that finds the size."""
    store = ModelStore(config.models)
    for spec in (config.target, *config.drafts):
        if spec not in PRESETS:
            if not local_path(spec) and _is_absent(spec, store):
                yield spec, partial(download_bytes, spec, None if spec == config.target else draft_files)
            continue
        preset = PRESETS[spec]
        if not isinstance(source := preset.source, str):
            if not store.packed.find(f"{spec}.gguf") and not store.find(spec):
                yield spec, partial(int, source.wheel_bytes)
        elif not store.packed.find(f"{spec}.gguf") if _takes_file(preset, config) else _is_absent(source, store):
            yield spec, partial(_preset_bytes, preset, config, with_drafter=spec == config.target and not config.draft)


def _preset_bytes(preset: Preset, config: EngineConfig, *, with_drafter: bool) -> int:
    draft, file = preset.drafter(gpu=_on_gpu(config)) if with_drafter else "", preset.file
    size = (
        download_bytes(draft, draft_files) if is_hub_id(draft) and _is_absent(draft, ModelStore(config.models)) else 0
    )
    if file and _takes_file(preset, config):
        return size + download_bytes(file.repository, lambda *_: [file.name])
    assert isinstance(preset.source, str)
    return size + download_bytes(preset.source)


def _takes_file(preset: Preset, config: EngineConfig) -> bool:
    """Whether a preset means its quantised file."""
    return preset.file is not None and config.dtype == config.quantize == "auto" and not _on_gpu(config)


def _on_gpu(config: EngineConfig) -> bool:
    return config.device.startswith("cuda") or (config.device == "auto" and has_gpu())


def _is_absent(spec: str, store: ModelStore) -> bool:
    """Whether a model of the hub is neither in the store nor in the hub library's cache."""
    here = store.find(spec) or store.find(hub_folder(spec)) or not HUB_ID.fullmatch(spec) or cached_snapshot(spec)
    return not here
