"""Download of a model from the Hugging Face hub: only the files a text model needs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from specchat.engine.errors import EngineError
from specchat.engine.files import make_folder
from specchat.engine.models.catalog import hub_folder
from specchat.engine.models.checkpoint import Checkpoint
from specchat.engine.models.disk import disk_errors, require_space
from specchat.engine.models.quiet import silence
from specchat.engine.models.resumed import LARGE, PARTIAL, fetch_resumed
from specchat.engine.models.wheel import growth_reported
from specchat.engine.progress import Progress

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)

_WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
_OTHERS = re.compile(r"model\.safetensors\.index\.json|(config|generation_config|[\w-]*token[\w-]*|vocab)\.json")
_TEXTS = re.compile(r"merges\.txt|vocab\.txt|tokenizer\.model|[\w-]+\.jinja|LICENSE[\w.]*|README\.md")


def cached_snapshot(hub_id: str) -> Path | None:
    """Folder of a complete model in huggingface_hub's own cache, or None; needs no network."""
    from huggingface_hub import constants

    if not (Path(constants.HF_HUB_CACHE) / f"models--{hub_folder(hub_id)}").is_dir():
        return None
    from huggingface_hub import snapshot_download  # a list of models need not wait a second for it

    try:
        folder = Path(snapshot_download(hub_id, local_files_only=True))
        Checkpoint.open(folder)
    except Exception:
        # Whatever is wrong with the library's cache, the model is fetched into our own store.
        return None
    return folder


def hub_files(hub_id: str) -> list[str]:
    """Names of the files of a hub repository.

    Raises:
        EngineError: no such repository, no access, no network.
    """
    from huggingface_hub import HfApi

    silence()
    try:
        return [file.rfilename for file in HfApi().model_info(hub_id).siblings or ()]
    except Exception as error:
        raise _hub_error(hub_id, error) from error


def hub_file(hub_id: str, name: str) -> Path:
    """One small file of a hub repository, in huggingface_hub's own cache.

    Raises:
        EngineError: no such file, no access, no network.
    """
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(hub_id, name))
    except Exception as error:
        raise _hub_error(hub_id, error) from error


def fetch_from_hub(
    hub_id: str,
    folder: Path,
    progress: Progress,
    needed: Callable[[str, list[str]], list[str]] | None = None,
) -> None:
    """Download a model into `folder`, resuming an earlier attempt.

    Args:
        hub_id: of the repository.
        folder: made if it is not there.
        progress: called with the stage fetch.
        needed: selects the files; those of a whole model if not given.

    Raises:
        EngineError: no such model, no access, no safetensors, no network, no room on the disk.
    """
    from huggingface_hub import HfApi, snapshot_download

    silence()
    progress("fetch", f"Looking up {hub_id} on the hub", None)
    try:
        info = HfApi().model_info(hub_id, files_metadata=True)
    except Exception as error:
        raise _hub_error(hub_id, error) from error
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    files = (needed or needed_files)(hub_id, list(sizes))
    total = sum(sizes[name] for name in files)
    make_folder(folder)
    for stale in folder.iterdir():  # of another revision
        if stale.is_file() and stale.name not in files:
            stale.unlink()
    for outdated in (folder / PARTIAL).glob("*"):
        if outdated.name != info.sha:
            shutil.rmtree(outdated, ignore_errors=True)
    kept = [folder / place / name for place in ("", f"{PARTIAL}/{info.sha}") for name in files]
    arrived = sum(file.stat().st_size for file in kept if file.is_file())
    require_space(folder, total - arrived, f"fetching {hub_id}")
    try:
        with disk_errors(folder, f"fetching {hub_id}"), growth_reported(folder, total, f"Fetching {hub_id}", progress):
            large = [file for file in info.siblings or () if file.rfilename in files and sizes[file.rfilename] >= LARGE]
            for file in large:
                sha256 = file.lfs.sha256 if file.lfs else None
                fetch_resumed(hub_id, str(info.sha), file.rfilename, sizes[file.rfilename], sha256, folder)
            others = [name for name in files if sizes[name] < LARGE]
            snapshot_download(hub_id, revision=info.sha, local_dir=folder, allow_patterns=others)
    except EngineError:
        raise
    except Exception as error:
        raise _hub_error(hub_id, error) from error
    # Offline, the library returns a half-filled folder as if all were well.
    lacking = [name for name in files if not _has(folder / name, sizes[name])]
    if lacking:
        raise EngineError(f"{hub_id} could not be fetched completely ({lacking[0]} is cut short): try again")
    for leftover in (".cache", PARTIAL):
        shutil.rmtree(folder / leftover, ignore_errors=True)


def needed_files(hub_id: str, names: list[str]) -> list[str]:
    """Select the files of a hub model that are needed to run it.

    Raises:
        EngineError: none of them is a safetensors weight file.
    """
    if not any(_WEIGHTS.fullmatch(name) for name in names):
        if any(name.endswith(".gguf") for name in names):
            remedy = "it holds GGUF files: download one and give its path"
        elif any(name.endswith((".bin", ".pt", ".pth")) for name in names):
            remedy = "its weights are pickled, which can run code: choose a model that has safetensors"
        else:
            remedy = "it holds no weights: is it the model you mean?"
        raise EngineError(f"{hub_id} has no safetensors weights; {remedy}")
    return [name for name in names if any(kind.fullmatch(name) for kind in (_WEIGHTS, _OTHERS, _TEXTS))]


def _has(file: Path, size: int) -> bool:
    return file.is_file() and file.stat().st_size == size


def _hub_error(hub_id: str, error: Exception) -> EngineError:
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    page = f"https://huggingface.co/{hub_id}"
    if isinstance(error, GatedRepoError):
        return EngineError(f"{hub_id} is gated: accept its licence at {page}, run 'hf auth login', then try again")
    if isinstance(error, RepositoryNotFoundError):
        return EngineError(f"there is no model {hub_id} on the hub, or it is private: check the name at {page}")
    if isinstance(error, HFValidationError):
        return EngineError(f"{hub_id} cannot be the name of a model on the hub: it looks like organisation/name")
    if isinstance(error, OfflineModeIsEnabled):
        return EngineError(f"{hub_id} is not on this machine and HF_HUB_OFFLINE is set: unset it to fetch the model")
    if isinstance(error, HfHubHTTPError):
        return EngineError(f"the hub refused {hub_id} (HTTP status {error.response.status_code}): try again later")
    return EngineError(
        f"{hub_id} is not on this machine and the hub cannot be reached ({type(error).__name__}): check the network, "
        "or choose a model that 'specchat models list' shows as local"
    )
