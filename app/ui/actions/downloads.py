"""Downloads of models, which begin after a question."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from specchat import engine
from specchat.app.sources.pull import Pull
from specchat.app.ui.actions.scope import ActionGroup, in_background
from specchat.engine.models import PRESETS, Machine, downloads

TYPED_S = 0.2
"""Between two looks whether a prompt is still being typed."""


@dataclass(eq=False)
class Downloads(ActionGroup):
    """Downloads models, and asks first whether to."""

    pulls: dict[str, Pull] = field(default_factory=dict)
    """Downloads of this run, by model."""

    async def machine(self) -> Machine:
        """What another model could use: what is free, and what the loaded one frees."""
        machine = await asyncio.to_thread(Machine.now, engine.models_folder())
        return replace(machine, memory=machine.memory + self._scope.loaded.weight_bytes)

    def pull(self, name: str) -> None:
        """Start, resume or pause the download of a model; asks before the first start."""
        pull = self.pulls.get(name)
        if pull is None:
            self._begin(name)
        elif pull.running:
            pull.pause()
        else:
            pull.start()

    @in_background("asking")
    async def _begin(self, name: str) -> None:
        if await self.confirmed(engine.EngineConfig(name, engine.models_folder())):
            pull = self.pulls.setdefault(name, Pull(name))
            pull.start()

    async def confirmed(self, config: engine.EngineConfig, *, unasked: bool = False) -> bool:
        """Whether nothing must be downloaded, or the download is wanted.

        An unexpected question (`unasked`) waits while a prompt is typed, whose keys it would take.

        Raises:
            EngineError: a size cannot be found, or memory or disk is too small.
        """
        sizes = await asyncio.to_thread(downloads, config)
        if not sizes:
            return True
        machine, names, size = await self.machine(), " and ".join(sizes), sum(sizes.values())
        presets = [PRESETS[name] for name in sizes if name in PRESETS]
        memory = sum(preset.memory_bytes(gpu=machine.gpu) for preset in presets)
        disk = max(size, sum(preset.disk_bytes(gpu=machine.gpu) for preset in presets))
        if short := machine.shortage(memory, disk):
            raise engine.EngineError(f"{names} {short}: choose a smaller model, or make room")
        about = [
            *dict.fromkeys(preset.licence for preset in presets),
            *([f"needs {engine.size_text(memory)} of memory"] if memory else []),
            f"{engine.size_text(machine.disk)} of disk free",
        ]
        options = [("download", engine.size_text(size)), ("cancel", "")]
        while unasked and self._scope.screen.typed:
            await asyncio.sleep(TYPED_S)
        return await self._scope.choose(f"download {names}?", options, " · ".join(about)) == 0

    def close(self) -> None:
        """Pause every download."""
        for pull in self.pulls.values():
            pull.pause()
