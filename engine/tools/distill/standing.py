"""State of a distillation that is kept between calls, and the lock of its work folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from specchat.engine.errors import EngineError
from specchat.engine.files import make_folder, replacing
from specchat.engine.models.disk import disk_errors
from specchat.engine.tools.distill.options import COUNTED, DEFAULT_KIND

WORK = ".work"
"""Subfolder of the draft's folder for training text and checkpoint; kept, so that training can be continued."""
_FILE = "distill.json"


@dataclass(slots=True)
class Standing:
    """State of one work folder."""

    folder: Path
    target: str
    fingerprint: str
    kind: str = DEFAULT_KIND
    text_seconds: float = 0.0
    """Seconds spent on writing text, in all calls."""

    @classmethod
    @contextmanager
    def of(cls, folder: Path, target: str, fingerprint: str, kind: str = DEFAULT_KIND) -> Iterator[Standing]:
        """Context manager that locks the work folder, creating it if needed, and yields its state.

        Args:
            folder: the work folder.
            target: display name of the target.
            fingerprint: of the target (`engine.models.fingerprint`).
            kind: of the draft.

        Raises:
            EngineError: the folder belongs to another target or kind, another process holds it, or the disk is full.
        """
        from filelock import FileLock, Timeout

        with disk_errors(folder, "distilling"):
            make_folder(folder)
            lock = FileLock(folder / "lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                raise EngineError(f"another specchat is distilling into {folder.parent}: wait for it") from None
        try:
            standing = cls(folder, target, fingerprint, kind)
            standing.spend(standing._stored() if (folder / _FILE).is_file() else 0.0)
            yield standing
        finally:
            lock.release()

    def require_text(self, folder: Path) -> Path:
        """The work folder of another distillation, to read its text.

        Raises:
            EngineError: there is none, it is this one, or it belongs to another target or kind.
        """
        other = Standing(folder / WORK, self.target, self.fingerprint, self.kind)
        if not (other.folder / _FILE).is_file():
            raise EngineError(
                f"{folder} holds no text that specchat distill wrote: name folders that it made, or count texts with "
                f"--kind {COUNTED}"
            )
        if other.folder.resolve() == self.folder.resolve():
            raise EngineError(f"the text of {folder} is read anyway, as the draft goes there: leave it out of --text")
        other._stored()
        return other.folder

    def _stored(self) -> float:
        """The time spent on text that the folder states.

        Raises:
            EngineError: the folder belongs to another target or kind, or cannot be read.
        """
        folder = self.folder
        try:
            stored = json.loads((folder / _FILE).read_text(encoding="utf-8"))
            theirs, name, seconds = stored["fingerprint"], stored["target"], float(stored["text_seconds"])
            its_kind = stored.get("kind", DEFAULT_KIND)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EngineError(f"{folder / _FILE} cannot be read ({error}): name another folder") from None
        if theirs != self.fingerprint:
            raise EngineError(
                f"{folder.parent} holds the training of a draft head for {name}, with other weights than {self.target} "
                "has: name another folder"
            )
        if its_kind != self.kind:
            raise EngineError(
                f"{folder.parent} holds the training of a draft of the kind {its_kind}, not {self.kind}: name another "
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
        with disk_errors(self.folder, "distilling"), replacing(self.folder / _FILE) as part:
            part.write_text(json.dumps(fields) + "\n", encoding="utf-8")
