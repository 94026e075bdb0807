"""Download of one large file of the hub that goes on where an earlier attempt stopped, within the file."""

from __future__ import annotations

import os
from pathlib import Path

from specchat.engine.errors import EngineError
from specchat.engine.files import make_folder
from specchat.engine.models.disk import sha256_of

PARTIAL = ".partial"
"""Folder of what has arrived, beside the files that are complete."""
LARGE = 16 << 20
"""Files from this size on are fetched so: huggingface_hub begins a file that was cut off anew."""


def fetch_resumed(hub_id: str, revision: str, name: str, size: int, sha256: str | None, folder: Path) -> None:
    """Download a file of a revision into `folder`; what has arrived of it stays when the process ends.

    Args:
        size: bytes of the whole file.
        sha256: of the whole file, where the hub states it.

    Raises:
        EngineError: what arrived has another content; it has been deleted.
        Exception: whatever huggingface_hub raises.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils._headers import build_hf_headers

    complete = folder / name
    if complete.is_file() and complete.stat().st_size == size:
        return
    part = folder / PARTIAL / revision / name
    make_folder(part.parent)
    if part.is_file() and part.stat().st_size > size:
        part.unlink()
    part.touch()
    with part.open("r+b") as file:  # not to append: a hub that gives no parts begins anew
        if (arrived := file.seek(0, os.SEEK_END)) < size:
            url = hf_hub_url(hub_id, name, revision=revision)
            http_get(url, file, resume_size=arrived, headers=build_hf_headers(), expected_size=size)
    if sha256 is not None and sha256_of(part) != sha256:
        part.unlink()
        raise EngineError(f"{name} of {hub_id} was damaged on the way and has been deleted: try again")
    part.replace(complete)
