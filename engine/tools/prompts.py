"""Prompt sets of benchmarks and checks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from specchat.engine.config import ASSETS
from specchat.engine.errors import EngineError, check
from specchat.engine.request import Constraint, Message, Request, of_schema
from specchat.engine.sequence.prompt import encode
from specchat.engine.tools.data_sets import MISSHAPEN, UNKNOWN, constraint_of, conversation_of, read_entries

_FOLDER = ASSETS / "prompts"
SETS = ("chat", "code", "copy", "structured")
"""Shipped prompt sets: everyday questions; programs; texts to repeat; JSON, tables and lists."""
CONSTRAINED = "schemas"
"""The set whose replies follow JSON schemas; it is used only where it is named."""
_EXAMPLE = "Write an example that follows this JSON schema:\n\n{}"
"""The prompt of an entry that has a schema only."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: a user message, after a conversation or alone, or token ids."""

    text: str = ""
    ids: tuple[int, ...] = ()
    constraint: Constraint | None = None
    """What the reply has to follow."""
    before: tuple[Message, ...] = ()
    """The messages before the text."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """Messages of the request; empty if the prompt is token ids."""
        return () if self.ids else (*self.before, Message("user", self.text))

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
    """Load shipped prompt sets by name, and files of prompts.

    Raises:
        EngineError: a set does not exist, or a file cannot be used.
    """
    sets = []
    for name in names:
        known = (*SETS, CONSTRAINED)
        if name not in known:
            choice = f"choose one of {', '.join(known)}, or name a file"
            check(Path(name).exists(), f"prompt set {name!r} is not known: {choice}")
            sets.append(_of_file(Path(name)))
            continue
        read = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        schemas = read.get("schemas", [None] * len(read["prompts"]))
        prompts = (
            Prompt(text, constraint=schema and of_schema(schema))
            for text, schema in zip(read["prompts"], schemas, strict=True)
        )
        sets.append(PromptSet(name, tuple(prompts)))
    return sets


def _of_file(file: Path) -> PromptSet:
    """The prompts of a data set: of each conversation all up to its last question.

    Raises:
        EngineError: the file cannot be read, or an entry has no prompt.
    """
    prompts = []
    ((_, entries),) = read_entries([file])
    for where, entry in entries:
        try:
            check(isinstance(entry, dict), "it is not a JSON object")
            prompts.append(_of_entry(entry))  # type: ignore[arg-type]
        except EngineError as error:
            raise EngineError(f"{where}: {error}") from None
        except MISSHAPEN:
            raise EngineError(f"{where}: {UNKNOWN}") from None
    check(prompts, f"{file} has no prompts: write a JSON object with messages on each line")
    return PromptSet(file.stem, tuple(prompts))


def _of_entry(entry: Mapping[str, Any]) -> Prompt:
    constraint = constraint_of(entry)
    if constraint is not None and not entry.keys() & {"messages", "conversations", "prompt", "turns"}:
        return Prompt(_EXAMPLE.format(constraint.text), constraint=constraint)
    messages = conversation_of(entry)
    places = [place for place, message in enumerate(messages) if message.role == "user"]
    check(places, "it has no question")
    return Prompt(messages[places[-1]].content, constraint=constraint, before=messages[: places[-1]])
