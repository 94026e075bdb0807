"""What the loaded engine offers to the app's actions."""

from __future__ import annotations

from dataclasses import dataclass

from specchat.engine import Ready


@dataclass
class EngineOffer:
    """Filled in when the models are loaded."""

    target: str = ""
    """Name of the model that answers."""
    drafters: tuple[str, ...] = ()
    """What the loaded models can draft with, the best one first; empty until they are loaded."""
    slots: int = 4
    """Replies that can be written at once."""

    def update(self, ready: Ready) -> None:
        """Take over what was loaded."""
        self.target, self.drafters = ready.target, ready.drafters
        self.slots = ready.slots or self.slots  # another server may not say
