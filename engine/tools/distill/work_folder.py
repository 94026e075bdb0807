"""Options and result of a distillation, and its work folder: state between calls, lock, text, and starting draft."""

from __future__ import annotations

import filecmp
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from specchat.engine.config import SHIPPED_HEADS
from specchat.engine.drafters.head.folder import HeadAcceptance
from specchat.engine.errors import EngineError, check, errors_as
from specchat.engine.files import local_path, make_folder, replacing
from specchat.engine.models.disk import disk_errors

DEFAULT_KIND = "eagle"
COUNTED = "bigram"
"""The kind that is counted in texts, not trained."""
WORK = ".work"
"""Subfolder of the draft's folder for training text and checkpoint; kept, so that training can be continued."""
_STATE = "distill.json"
_START = "from"
"""Subfolder with a copy of the draft that the training started from."""
_WITHOUT_TEXT = {"lock", _STATE, _START, f"{_START}.part"}
"""What a work folder holds before there is any text or training."""


@dataclass(frozen=True, slots=True)
class DistillOptions:
    """Options of the command line.

    Raises:
        EngineError: a value is out of range.
    """

    models: Path
    target: str
    out: Path
    kind: str = DEFAULT_KIND
    """eagle, medusa, block, pass or bigram."""
    minutes: float = 120.0
    prompts: Sequence[Sequence[str]] | None = None
    """User turns of conversations (`engine.tools.distill.text.read_turns`); without, the target writes these too."""
    begin: str | None = None
    """Finished draft that the training starts from (`find_start`)."""
    chats: Path | None = None
    """Conversations with replies of this target, one a line and the oldest first: read instead of writing text."""
    text: tuple[Path, ...] = ()
    """Files that tables are counted in; for other kinds, folders of earlier distillations whose text is used too."""
    device: str = "auto"
    dtype: str = "auto"
    slots: int = 4
    """Requests at once in the evaluation."""
    context: int = 1024
    """Context of the engine in the evaluation, in tokens; the model's own if that is less."""

    def __post_init__(self) -> None:
        check(self.minutes > 0, f"minutes is {self.minutes:g}: it must be above 0")
        if self.chats is not None and (self.begin is None or self.kind != DEFAULT_KIND or self.prompts is not None):
            raise EngineError("chats continue the training of a head: give --from, and neither --kind nor --prompts")
        told = f"from is for kinds that are trained, and kind {COUNTED} is counted: leave one of them out"
        check(self.begin is None or self.kind != COUNTED, told)


@dataclass(frozen=True, slots=True)
class Distilled:
    """A draft in a folder that `--draft` loads."""

    noun: str
    """What it is, with its article: a draft head."""
    target: str
    """Display name of the target."""
    tokens: int
    """Tokens of the text that it was made from."""
    steps: int
    """Updates of its weights; 0 for counted tables."""
    minutes: float
    """Time spent, text and training together."""
    steps_before: int = 0
    """Updates of the draft that the training started from, included in `steps`; its tokens and minutes are included
    too."""
    gamma: int = 0
    """Draft length of the evaluation."""
    reached: Mapping[str, HeadAcceptance] = field(default_factory=dict)
    """Acceptance on prompts that are not in the text, greedy and at temperature 1; empty for counted tables."""
    before: Mapping[str, HeadAcceptance] = field(default_factory=dict)
    """Acceptance of the starting draft, if measured on held-out chats; the rate at temperature 1 is Σ min(p, q)."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a work folder, creating it if needed; remove it again if the block fails before it holds any text.

    Raises:
        EngineError: another process holds it, it cannot be created, or the disk is full.
    """
    from filelock import FileLock, Timeout

    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    with disk_errors(folder, "distilling"):
        make_folder(folder)
        with errors_as(lambda _: f"another specchat is distilling into {folder.parent}: wait for it", Timeout):
            lock = FileLock(folder / "lock").acquire(timeout=0)
    with lock:
        try:
            yield
        except BaseException:
            if missing and {file.name for file in folder.iterdir()} <= _WITHOUT_TEXT:
                shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # another process may have put something there
                for each in missing[1:]:
                    each.rmdir()
            raise


def require_text(folders: Sequence[Path]) -> None:
    """Check that distillations have written text into these folders.

    Raises:
        EngineError: one has none.
    """
    for folder in folders:
        if not (folder / WORK / _STATE).is_file():
            raise EngineError(
                f"{folder} holds no text that specchat distill wrote: name folders that it made, or count texts with "
                f"--kind {COUNTED}"
            )


@dataclass(slots=True)
class WorkFolder:
    """A work folder and its state."""

    folder: Path
    target: str
    fingerprint: str
    kind: str = DEFAULT_KIND
    text_seconds: float = 0.0
    """Seconds spent on writing text, in all calls."""

    @classmethod
    def of(cls, folder: Path, target: str, fingerprint: str, kind: str = DEFAULT_KIND) -> WorkFolder:
        """The work folder of a distillation, which is locked; continues an earlier one.

        Args:
            folder: the work folder.
            target: display name of the target.
            fingerprint: fingerprint of the target (`engine.models.load.fingerprint`).
            kind: kind of the draft.

        Raises:
            EngineError: the folder belongs to another target or kind, or the disk is full.
        """
        work = cls(folder, target, fingerprint, kind)
        work.spend(work._stored_seconds() if (folder / _STATE).is_file() else 0.0)
        return work

    def text_of(self, folder: Path) -> Path:
        """Work folder of another distillation, to read its text.

        Raises:
            EngineError: it is this one, or belongs to another target or kind.
        """
        other = WorkFolder(folder / WORK, self.target, self.fingerprint, self.kind)
        if other.folder.resolve() == self.folder.resolve():
            raise EngineError(f"the text of {folder} is read anyway, as the draft goes there: leave it out of --text")
        other._stored_seconds()
        return other.folder

    def _stored_seconds(self) -> float:
        """Time spent on text, from the state file.

        Raises:
            EngineError: the folder belongs to another target or kind, or cannot be read.
        """
        folder = self.folder
        try:
            stored = json.loads((folder / _STATE).read_text(encoding="utf-8"))
            fingerprint, name, seconds = stored["fingerprint"], stored["target"], float(stored["text_seconds"])
            kind = stored.get("kind", DEFAULT_KIND)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EngineError(f"{folder / _STATE} cannot be read ({error}): name another folder") from None
        if fingerprint != self.fingerprint:
            raise EngineError(
                f"{folder.parent} holds the training of a draft head for {name}, with other weights than {self.target} "
                "has: name another folder"
            )
        if kind != self.kind:
            raise EngineError(
                f"{folder.parent} holds the training of a draft of the kind {kind}, not {self.kind}: name another "
                "folder"
            )
        return seconds

    def spend(self, text_seconds: float) -> None:
        """Save the total time spent on text.

        Raises:
            EngineError: the disk is full.
        """
        self.text_seconds = text_seconds
        fields = {name: value for name, value in asdict(self).items() if name != "folder"}
        with disk_errors(self.folder, "distilling"), replacing(self.folder / _STATE) as part:
            part.write_text(json.dumps(fields) + "\n", encoding="utf-8")

    def clear(self) -> None:
        """Delete the text and the training, but not the lock and the state."""
        for file in self.folder.iterdir():
            if file.is_dir():
                shutil.rmtree(file, ignore_errors=True)
            elif file.name not in ("lock", _STATE):
                file.unlink(missing_ok=True)

    @property
    def checkpoint(self) -> Path:
        """File of the training; it is there once the training has started."""
        return self.folder / "training.pt"

    @property
    def start(self) -> Path | None:
        """Folder with the copy of the draft that the training started from; None if it started without."""
        copy = self.folder / _START
        return copy if copy.is_dir() else None

    def keep_start(self, draft: Path, files: Sequence[str]) -> None:
        """Copy a draft that the training starts from, so that it can be continued without that draft.

        Args:
            draft: folder of the draft.
            files: names of the files to copy.

        Raises:
            EngineError: the training started with something else, or the disk is full.
        """
        copy = self.start
        if copy is None and not self.checkpoint.is_file():
            part = self.folder / f"{_START}.part"
            with disk_errors(self.folder, "distilling"):
                shutil.rmtree(part, ignore_errors=True)  # left by an interrupted call
                make_folder(part)
                for name in files:
                    shutil.copyfile(draft / name, part / name)
                part.rename(self.folder / _START)
        elif copy is None or not all(filecmp.cmp(draft / name, copy / name, shallow=False) for name in files):
            raise EngineError(
                f"{self.folder.parent} holds a training that has not begun with {draft}: leave --from out to continue "
                "it, or distil into another folder"
            )


@dataclass(frozen=True, slots=True)
class StartingDraft:
    """A finished draft that is trained further."""

    weights: Mapping[str, Tensor]
    """Weights by parameter name of the network that is trained."""
    vocabulary: Tensor | None
    """[V'], int64: the tokens that it drafts; None if it drafts all of V."""
    tokens: int
    """Tokens of text that it was made from."""
    steps: int
    """Updates so far."""
    minutes: float
    """Time spent so far."""


def as_stated(
    folder: Path, about: Mapping[str, Any], weights: Mapping[str, Tensor], vocabulary: Tensor | None
) -> StartingDraft:
    """A starting draft with the amounts of the folder's card, under `distilled`.

    Raises:
        EngineError: the card has none, because `distill` has not made the draft.
    """
    with errors_as(
        lambda _: f"{folder} does not say how it was trained: --from takes what specchat distill has made",
        (KeyError, TypeError, ValueError),
    ):
        made = about["distilled"]
        return StartingDraft(weights, vocabulary, int(made["tokens"]), int(made["steps"]), float(made["minutes"]))


def other_sizes(folder: Path, target: str) -> EngineError:
    """Error for a draft whose sizes differ from a new draft's for this target."""
    return EngineError(f"{folder} has other sizes than distill gives a draft for {target}: begin without --from")


def find_start(spec: str, out: Path, kind: str, files: Sequence[str]) -> Path:
    """Folder of the draft given by `--from`.

    Args:
        spec: a folder, or the preset of a target whose head is shipped.
        out: folder of the new draft.
        kind: kind of the draft.
        files: names of the files of a draft of this kind.

    Raises:
        EngineError: it does not exist, is of another kind, or the new draft would be written into it.
    """
    folder = local_path(spec)
    shipped = sorted(entry.name for entry in SHIPPED_HEADS.iterdir() if entry.is_dir())
    if folder is None and spec in shipped:
        folder = SHIPPED_HEADS / spec
    if folder is None or not folder.is_dir():
        raise EngineError(f"there is no folder {spec} to begin from: give that of a draft, or {', '.join(shipped)}")
    if not all((folder / name).is_file() for name in files):
        raise EngineError(
            f"{spec} holds no draft of the kind {kind} ({' and '.join(files)}): give one that specchat distill --kind "
            f"{kind} has made"
        )
    if out.resolve().is_relative_to(folder.resolve()):
        raise EngineError(f"{out} is in {spec}, which stays as it is: name another folder with --out")
    return folder
