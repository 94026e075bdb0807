"""Prompt sets of benchmarks and checks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

from specchat.engine.config import ASSETS
from specchat.engine.errors import check
from specchat.engine.request import Constraint, ConstraintKind, Message, Request
from specchat.engine.sequence.prompt import encode

_FOLDER = ASSETS / "prompts"
SETS = ("chat", "code", "copy", "structured")
"""Shipped prompt sets: everyday questions; programs; texts to repeat; JSON, tables and lists."""
CONSTRAINED = "schemas"
"""The set whose replies follow JSON schemas; it is used only where it is named."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: a user message, or token ids."""

    text: str = ""
    ids: tuple[int, ...] = ()
    constraint: Constraint | None = None
    """What the reply has to follow."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """Messages of the request; empty if the prompt is token ids."""
        return () if self.ids else (Message("user", self.text),)

    def encode(self, tokenizer: Any) -> list[int]:
        """Token ids, by the engine's tokenizer and chat template."""
        return encode(Request("prompt", messages=self.messages, prompt_ids=self.ids), tokenizer)


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts of one kind."""

    name: str
    prompts: tuple[Prompt, ...]

    def first(self, limit: int) -> PromptSet:
        """The set cut to its first `limit` prompts."""
        return PromptSet(self.name, self.prompts[:limit])

    def as_texts(self, tokenizer: Any) -> PromptSet:
        """The set for a target without conversations, which reads texts as they are."""
        prompts = (
            each if each.ids else replace(each, text="", ids=tuple(tokenizer.encode(each.text)))
            for each in self.prompts
        )
        return PromptSet(self.name, tuple(prompts))

    def waves(self, batch: int) -> tuple[Prompt, ...]:
        """The prompts, repeated from the start until they fill whole batches of size `batch`."""
        count = -(-len(self.prompts) // batch) * batch
        return tuple(islice(cycle(self.prompts), count))


def load_prompts(names: Sequence[str]) -> list[PromptSet]:
    """Load shipped prompt sets by name.

    Raises:
        EngineError: a set does not exist.
    """
    sets = []
    for name in names:
        known = (*SETS, CONSTRAINED)
        check(name in known, f"prompt set {name!r} is not known: choose one of {', '.join(known)}")
        read = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        schemas = read.get("schemas", [None] * len(read["prompts"]))
        prompts = (
            Prompt(text, constraint=schema and Constraint(ConstraintKind.SCHEMA, json.dumps(schema)))
            for text, schema in zip(read["prompts"], schemas, strict=True)
        )
        sets.append(PromptSet(name, tuple(prompts)))
    return sets
