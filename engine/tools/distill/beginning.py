"""A finished draft that a training begins with, and the copy of it that the training keeps."""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from specchat.engine.config import SHIPPED_HEADS
from specchat.engine.errors import EngineError
from specchat.engine.files import make_folder
from specchat.engine.models.disk import disk_errors

_COPY = "from"
"""Subfolder of the work folder."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """What is known of a draft that is trained further."""

    weights: Mapping[str, Tensor]
    """By their names in the network that is trained."""
    vocabulary: Tensor | None
    """[V'], int64: the tokens that it drafts; None where it drafts all of V."""
    tokens: int
    """Tokens of text that it has been made from."""
    steps: int
    """Updates so far."""
    minutes: float
    """Time spent so far."""


def as_stated(
    folder: Path, about: Mapping[str, Any], weights: Mapping[str, Tensor], vocabulary: Tensor | None
) -> Beginning:
    """With the amounts that the card of a folder states under `distilled`.

    Raises:
        EngineError: it states none, as `distill` has not made it.
    """
    try:
        made = about["distilled"]
        return Beginning(weights, vocabulary, int(made["tokens"]), int(made["steps"]), float(made["minutes"]))
    except (KeyError, TypeError, ValueError):
        raise EngineError(
            f"{folder} does not say how it was trained: --from takes what specchat distill has made"
        ) from None


def other_sizes(folder: Path, target: str) -> EngineError:
    """For a draft whose network is not that of a new one for this target."""
    return EngineError(f"{folder} has other sizes than distill gives a draft for {target}: begin without --from")


def find_beginning(spec: str, out: Path, kind: str, files: Sequence[str]) -> Path:
    """Folder of the draft that `--from` names.

    Args:
        spec: a folder, or the preset of a target whose head is shipped.
        out: where the new draft goes.
        kind: of the draft.
        files: what a draft of this kind consists of.

    Raises:
        EngineError: there is none, it is of another kind, or the new one would be written into it.
    """
    folder = Path(spec).expanduser()
    shipped = sorted(entry.name for entry in SHIPPED_HEADS.iterdir() if entry.is_dir())
    if not folder.is_dir() and spec in shipped:
        folder = SHIPPED_HEADS / spec
    if not folder.is_dir():
        raise EngineError(f"there is no folder {spec} to begin from: give that of a draft, or {', '.join(shipped)}")
    if not all((folder / name).is_file() for name in files):
        raise EngineError(
            f"{spec} holds no draft of the kind {kind} ({' and '.join(files)}): give one that specchat distill --kind "
            f"{kind} has made"
        )
    if out.resolve().is_relative_to(folder.resolve()):
        raise EngineError(f"{out} is in {spec}, which stays as it is: name another folder with --out")
    return folder


def kept(work: Path) -> Path | None:
    """Folder of the copy that a training keeps; None where it has begun without."""
    copy = work / _COPY
    return copy if copy.is_dir() else None


def keep(head: Path, work: Path, files: Sequence[str], *, begun: bool) -> None:
    """Copy a draft into the work folder of the training that begins with it, so that it can go on without it.

    Args:
        head: folder of the draft.
        work: the work folder.
        files: what to copy.
        begun: whether the training has.

    Raises:
        EngineError: the training has begun with something else, or the disk is full.
    """
    copy = kept(work)
    if copy is None and not begun:
        part = work / f"{_COPY}.part"
        with disk_errors(work, "distilling"):
            shutil.rmtree(part, ignore_errors=True)  # of an attempt that was cut off
            make_folder(part)
            for name in files:
                shutil.copyfile(head / name, part / name)
            part.rename(work / _COPY)
    elif copy is None or not all(filecmp.cmp(head / name, copy / name, shallow=False) for name in files):
        raise EngineError(
            f"{work.parent} holds a training that has not begun with {head}: leave --from out to go on with it, or "
            "distil into another folder"
        )
