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
    thinking_switch: bool = False
    """Whether the model's chat template can switch thinking on and off."""
    template_words: tuple[str, ...] = ()
    """Words with a slash before them that it looks for in a conversation."""
    weight_bytes: int = 0
    """Memory of the weights."""

    def clear(self, target: str) -> None:
        """Other models are to be loaded."""
        self.target, self.drafters, self.weight_bytes = target, (), 0
        self.thinking_switch, self.template_words = False, ()

    def update(self, ready: Ready) -> None:
        """Take over what was loaded."""
        self.thinking_switch, self.template_words = ready.thinking_switch, ready.template_words
        self.weight_bytes = ready.weight_bytes
        self.target, self.drafters = ready.target, ready.drafters
        self.slots = ready.slots or self.slots  # another server may not say
