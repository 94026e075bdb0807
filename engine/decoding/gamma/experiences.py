"""Experience with each drafter of an engine, kept in a file so that a session starts with what the last one learnt."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from specchat.engine.decoding.drafter import DrafterProfile
from specchat.engine.decoding.gamma.acceptance_model import Experience
from specchat.engine.files import FILE_MODE, make_folder, replacing

_MOST = 64
"""Sets of models in the file; those used longest ago are dropped."""


class Experiences:
    """`Experience` by drafter and kind of sampling: sampled replies accept fewer tokens, and of drawn drafts others.

    A file that is missing or damaged, or has other buckets, is ignored.

    Args:
        file: JSON, shared by all sets of models; None for none.
        models: names of target and drafts, which an experience belongs to.
    """

    def __init__(self, file: Path | None = None, models: str = "") -> None:
        self._file, self._models = file, models
        self._known: dict[str, Experience] = {}
        self._stored = self._read().get(models, {})

    def of(self, drafter: str, sampling: str, profile: DrafterProfile) -> Experience:
        """The experience with a drafter and a kind of sampling."""
        name = f"{drafter}, {sampling}"
        if name not in self._known:
            experience = self._known[name] = Experience(profile)
            with suppress(KeyError, TypeError, ValueError):
                experience.restore(self._stored[name])
        return self._known[name]

    def save(self) -> None:
        """Write the records to the file, if any; a folder that cannot be written is ignored."""
        if self._file is None or not self._known:
            return
        learnt = {name: experience.state() for name, experience in self._known.items()}
        others = [(models, each) for models, each in self._read().items() if models != self._models]
        with suppress(OSError):
            make_folder(self._file.parent)
            with replacing(self._file) as part:
                part.touch(FILE_MODE)
                part.write_text(json.dumps(dict([*others[1 - _MOST :], (self._models, self._stored | learnt)])))
            self._file.chmod(FILE_MODE)  # `replacing` keeps the permissions of an older file

    def _read(self) -> dict[str, Any]:
        with suppress(OSError, ValueError, RecursionError):
            found = json.loads(self._file.read_text("utf-8")) if self._file else {}
            if isinstance(found, dict) and all(isinstance(each, dict) for each in found.values()):
                return found
        return {}
