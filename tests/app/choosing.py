"""A stage whose models can be chosen, and the models to choose from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from specchat.app.settings.settings import Settings
from specchat.app.sources.pull import Pull
from specchat.app.ui.actions import models as model_actions
from specchat.app.ui.screens import models as models_screen
from specchat.engine.models import KnownModel, Machine
from tests.app.recorded import RecordedEngine, trace
from tests.app.stage import Stage

GB = 10**9
HERE = Path("/models")


def absent(name: str, memory: int, download: int, install: int, read: float, **about: Any) -> KnownModel:
    """A model that must be downloaded first; its memory and disk in tenths of a GB, and what a token reads in bytes."""
    sizes = {"download_bytes": download * GB // 10, "install_bytes": install * GB // 10, "token_bytes": read}
    return KnownModel(name, None, None, memory * GB // 10, licence="Apache-2.0", **sizes, **about)


KNOWN = [
    KnownModel("smollm2-135m", HERE, GB // 4, GB // 4, note="the default: runs anywhere"),
    absent("qwen3.5-4b", 31, 28, 59, 2.8e9, draft="mtp", tau=2.4),
    KnownModel("qwen3-0.6b", HERE, 12 * GB // 10, 12 * GB // 10),
    absent("gpt-oss-20b", 133, 121, 254, 2.1e9, note="mixture of experts"),
    absent("gemma-4-e4b", 58, 53, 110, 3.1e9, draft="google/gemma-4-E4B-it-assistant", tau=2.1),
    KnownModel("/home/ada/models/gone.gguf", None, None, None, gone=True),
]


class Choosing(Stage):
    """A stage whose models can be chosen: each choice makes another recorded engine."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.made: list[tuple[Settings, RecordedEngine]] = []
        self.first = self.engine
        self.app.actions.make_source = self.make

    def make(self, settings: Settings) -> RecordedEngine:
        engine = RecordedEngine(trace("chat"))
        self.made.append((settings, engine))
        self.engine = engine
        return engine


async def shown(stage: Choosing, pilot: Pilot[None], monkeypatch: pytest.MonkeyPatch) -> None:
    def misfits(_: KnownModel, models: Sequence[KnownModel]) -> dict[str, str]:
        here = (model.spec for model in models if model.folder is not None)
        return {spec: "the draft's vocabulary is not the target's" if "qwen" in spec else "" for spec in here}

    monkeypatch.setattr(model_actions, "known_models", lambda *_: KNOWN)
    monkeypatch.setattr(models_screen, "misfits", misfits)
    monkeypatch.setattr(Machine, "now", lambda _: Machine(8 * GB, 90 * GB, 24e9))
    pull = Pull("qwen3.5-4b")
    pull.fraction, pull.text = 0.42, "Fetching unsloth/Qwen3.5-4B-MTP-GGUF: 1.2 GB of 2.8 GB"
    stage.app.actions.models.downloads.pulls["qwen3.5-4b"] = pull
    await stage.ready(pilot)
    await stage.press(pilot, "ctrl+backslash")
