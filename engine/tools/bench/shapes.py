"""Shapes of published models by name, to measure their speed without their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specchat.engine.errors import EngineError


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Llama-like decoder."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_value_heads: int
    head_size: int
    vocabulary: int
    context: int
    rope_theta: float

    def config(self) -> Any:
        """transformers config of this shape, with tied embeddings, as in all of these models."""
        from transformers import LlamaConfig

        return LlamaConfig(
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.key_value_heads,
            head_dim=self.head_size,
            vocab_size=self.vocabulary,
            max_position_embeddings=self.context,
            rope_parameters={"rope_type": "default", "rope_theta": self.rope_theta},
            tie_word_embeddings=True,
        )


SHAPES = {
    "llama-3.2-3b": Shape(3072, 8192, 28, 24, 8, 128, 128_256, 131_072, 500_000.0),
    "llama-3.2-1b": Shape(2048, 8192, 16, 32, 8, 64, 128_256, 131_072, 500_000.0),
    "smollm2-1.7b": Shape(2048, 8192, 24, 32, 32, 64, 49_152, 8_192, 130_000.0),
    "smollm2-135m": Shape(576, 1536, 30, 9, 3, 64, 49_152, 8_192, 100_000.0),
    "tiny": Shape(32, 64, 2, 4, 2, 8, 512, 4_096, 10_000.0),
}
"""Sizes from the models' own config.json, in the order of `Shape`."""


def parse_shapes(text: str) -> tuple[str, str | None]:
    """Parse `TARGET/DRAFT` into target and draft; `TARGET` alone has no draft.

    Raises:
        EngineError: a name is unknown, or the two do not share a vocabulary.
    """
    target, _, draft = text.partition("/")
    for name in (target, *([draft] if draft else [])):
        if name not in SHAPES:
            raise EngineError(f"shape {name!r} is not known: choose from {', '.join(SHAPES)}, as TARGET/DRAFT")
    if draft and SHAPES[target].vocabulary != SHAPES[draft].vocabulary:
        raise EngineError(f"the shapes {target} and {draft} have different vocabularies: choose two of one family")
    return target, draft or None
