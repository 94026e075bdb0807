"""Download of a model from the Hugging Face hub: only the files that a text model needs."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from io import BufferedRandom, FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from specchat.engine.errors import EngineError, errors_as
from specchat.engine.files import make_folder
from specchat.engine.models.catalog import hub_folder
from specchat.engine.models.checkpoint import Checkpoint
from specchat.engine.models.disk import disk_errors, folder_bytes, require_space, sha256_of
from specchat.engine.progress import Progress, silence, size_text

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer
    from huggingface_hub.hf_api import ModelInfo

_PARTIAL = ".partial"
"""Subfolder for incomplete files."""
Needed = Callable[[str, list[str]], list[str]]
"""Selects files of a repository by name."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)

SHARD = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
"""Names of files of weights."""
_DRAFTER = re.compile(r"[^/]+/(?=.*(dflash|dspark))[^/]+/[^/]+\.gguf", re.IGNORECASE)
_TYPE = re.compile(r"(?:f|q)(\d+)\w*\.gguf$", re.IGNORECASE)
_BITS = (8, 16, 6, 5, 4, 32)
"""Bits of a drafter's weights, in order of preference: 8 lose next to nothing, and more are a longer download."""
_OTHERS = re.compile(
    r"model\.safetensors\.index\.json|(config|generation_config|chat_template|[\w-]*token[\w-]*|vocab)\.json"
)
_TEXTS = re.compile(r"merges\.txt|vocab\.txt|tokenizer\.model|[\w-]+\.jinja|LICENSE[\w.]*|README\.md")


def cached_snapshot(hub_id: str) -> Path | None:
    """Folder of a complete model in huggingface_hub's own cache, or None; needs no network."""
    from huggingface_hub import constants

    if not (Path(constants.HF_HUB_CACHE) / f"models--{hub_folder(hub_id)}").is_dir():
        return None
    from huggingface_hub import snapshot_download  # takes a second to import

    try:
        folder = Path(snapshot_download(hub_id, local_files_only=True))
        Checkpoint.open(folder)
    except Exception:
        return None  # an incomplete or damaged cache: the model is downloaded into our own store
    return folder


def hub_files(hub_id: str) -> list[str]:
    """Names of the files of a hub repository.

    Raises:
        EngineError: no such repository, no access, no network.
    """
    return [file.rfilename for file in _look_up(hub_id).siblings or ()]


def download_bytes(hub_id: str, needed: Needed | None = None) -> int:
    """Bytes that `fetch_from_hub` would download; arguments and errors as there."""
    return sum(_sizes(hub_id, _look_up(hub_id), needed).values())


def _sizes(hub_id: str, info: ModelInfo, needed: Needed | None) -> dict[str, int]:
    """Bytes of each file to download."""
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    return {name: sizes[name] for name in (needed or needed_files)(hub_id, list(sizes))}


def _look_up(hub_id: str) -> ModelInfo:
    from huggingface_hub import HfApi

    silence()
    with _hub_errors(hub_id):
        return HfApi().model_info(hub_id, files_metadata=True)


def hub_file(hub_id: str, name: str) -> Path:
    """One small file of a hub repository, in huggingface_hub's own cache.

    Raises:
        EngineError: no such file, no access, no network.
    """
    from huggingface_hub import hf_hub_download

    with _hub_errors(hub_id):
        return Path(hf_hub_download(hub_id, name))


def fetch_from_hub(hub_id: str, folder: Path, progress: Progress, needed: Needed | None = None) -> None:
    """Download a model into `folder`, resuming an earlier attempt.

    Args:
        folder: created if it does not exist.
        progress: called with the stage fetch.
        needed: selects the files to download; `needed_files` by default.

    Raises:
        EngineError: no such model, no access, no safetensors, no network, no room on the disk.
    """
    progress("fetch", f"Looking up {hub_id} on the hub", None)
    info = _look_up(hub_id)
    sizes = _sizes(hub_id, info, needed)
    total = sum(sizes.values())
    revision = folder.with_name(f"{folder.name}.revision")  # of the files that are there
    if not revision.is_file() or revision.read_text(encoding="utf-8") != info.sha:
        shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    existing = [folder / place / name for place in ("", _PARTIAL) for name in sizes]
    arrived = sum(file.stat().st_size for file in existing if file.is_file())
    require_space(folder, total - arrived, f"fetching {hub_id}")
    progress("fetch", f"Fetching {hub_id}: {size_text(total)}", None)

    def report() -> None:
        done = min(folder_bytes(folder), total)
        progress("fetch", f"Fetching {hub_id}: {size_text(done)} of {size_text(total)}", done / total)

    with _hub_errors(hub_id, folder), disk_errors(folder, f"fetching {hub_id}"):
        revision.write_text(str(info.sha), encoding="utf-8")
        for file in info.siblings or ():
            if (name := file.rfilename) in sizes:
                sha256 = file.lfs.sha256 if file.lfs else None
                _download(hub_id, str(info.sha), name, sizes[name], sha256, folder, report)
    shutil.rmtree(folder / _PARTIAL, ignore_errors=True)


class _ReportedFile(BufferedRandom):
    """File that calls `report` after each write; what it raises ends the download."""

    def __init__(self, path: Path, report: Callable[[], None]) -> None:
        super().__init__(FileIO(path, "r+"))  # not in append mode: a server without range requests starts from 0
        self._report = report

    def write(self, content: Buffer, /) -> int:
        """Write, and report."""
        written = super().write(content)
        self._report()
        return written


def _download(
    hub_id: str, revision: str, name: str, size: int, sha256: str | None, folder: Path, report: Callable[[], None]
) -> None:
    """Download one file of a revision into `folder`, continuing after the bytes of an earlier attempt.

    huggingface_hub's own downloads would start again.

    Args:
        size: bytes of the whole file.
        sha256: of the whole file; None if the hub does not state it.
        report: called after each part that has arrived.

    Raises:
        EngineError: the content is wrong; the file has been deleted.
        Exception: whatever huggingface_hub raises.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils._headers import build_hf_headers

    complete = folder / name
    if complete.is_file() and complete.stat().st_size == size:
        return
    part = folder / _PARTIAL / name
    make_folder(part.parent)
    if part.is_file() and part.stat().st_size > size:
        part.unlink()
    part.touch()
    with _ReportedFile(part, report) as file:
        if (arrived := file.seek(0, os.SEEK_END)) < size:
            url = hf_hub_url(hub_id, name, revision=revision)
            http_get(url, file, resume_size=arrived, headers=build_hf_headers(), expected_size=size)
    if sha256 is not None and sha256_of(part) != sha256:
        part.unlink()
        raise EngineError(f"{name} of {hub_id} was damaged on the way and has been deleted: try again")
    part.replace(complete)


def needed_files(hub_id: str, names: list[str]) -> list[str]:
    """Select the files that are needed to run a hub model.

    Raises:
        EngineError: none of them is a safetensors weight file.
    """
    if not any(SHARD.fullmatch(name) for name in names):
        if any(name.endswith(".gguf") for name in names):
            remedy = "it holds GGUF files: download one and give its path"
        elif any(name.endswith((".bin", ".pt", ".pth")) for name in names):
            remedy = "its weights are pickled, which can run code: choose a model that has safetensors"
        else:
            remedy = "it holds no weights: is it the model you mean?"
        raise EngineError(f"{hub_id} has no safetensors weights; {remedy}")
    return [name for name in names if any(kind.fullmatch(name) for kind in (SHARD, _OTHERS, _TEXTS))]


def drafter_file(hub_id: str, names: list[str]) -> str | None:
    """Select the GGUF file of a block drafter, known by name; None without one, or if safetensors are there."""

    def rank(name: str) -> tuple[int, str]:
        found = _TYPE.search(name)
        bits = int(found[1]) if found else 0
        return _BITS.index(bits) if bits in _BITS else len(_BITS), name

    if any(SHARD.fullmatch(name) for name in names):
        return None
    return min((name for name in names if _DRAFTER.fullmatch(f"{hub_id}/{name}")), key=rank, default=None)


def draft_files(hub_id: str, names: list[str]) -> list[str]:
    """Select the files of a draft model, draft head or block drafter; errors as of `needed_files`."""
    file = drafter_file(hub_id, names)
    return [file] if file else needed_files(hub_id, names)


def tokenizer_files(names: list[str]) -> list[str]:
    """Select the files of a tokenizer and its chat template."""
    return [name for name in names if any(kind.fullmatch(name) for kind in (_OTHERS, _TEXTS))]


def _hub_errors(hub_id: str, folder: Path | None = None) -> AbstractContextManager[None]:
    """Context manager that turns every exception into an EngineError; `folder` has what arrived of a download."""
    return errors_as(lambda error: _hub_sentence(hub_id, error, folder_bytes(folder) if folder else 0))


def _hub_sentence(hub_id: str, error: Exception, arrived: int) -> str:
    from huggingface_hub import constants, errors

    page, kind = f"{constants.ENDPOINT}/{hub_id}", type(error).__name__
    status = getattr(getattr(error, "response", None), "status_code", None)
    sentences: dict[type[Exception], str] = {
        errors.GatedRepoError: f"{hub_id} is gated: accept its licence at {page}, run 'hf auth login', then try again",
        errors.RepositoryNotFoundError: f"there is no model {hub_id} on the hub, or it is private: check the name at "
        f"{page}",
        errors.HFValidationError: f"{hub_id} cannot be the name of a model on the hub: it looks like organisation/name",
        errors.OfflineModeIsEnabled: f"{hub_id} is not on this machine and HF_HUB_OFFLINE is set: unset it to fetch "
        "the model",
        errors.HfHubHTTPError: f"the hub refused {hub_id} (HTTP status {status}): try again later",
    }
    unreachable = (
        f"fetching {hub_id} was interrupted after {size_text(arrived)} ({kind}): try again, it continues there"
        if arrived
        else f"{hub_id} is not on this machine and the hub cannot be reached ({kind}): check the network, or choose a "
        "model of which 'specchat models list' shows the size under HERE"
    )
    return next((text for known, text in sentences.items() if isinstance(error, known)), unreachable)
