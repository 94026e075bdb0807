"""Descriptions of the settings of an engine: range, meaning, and when a change takes effect.

A field of `EngineConfig`, `Request` or `Sampling` that is made by `setting` is an entry of the table of settings, from
which interfaces make their options, keys, controls and documents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple

from specchat.engine.errors import EngineError, check

MODEL, SAMPLING, DRAFTING, MACHINE = TOPICS = ("Model", "Sampling", "Drafting", "Machine")
"""Groups of settings."""
_KEY = "setting"
"""Key of the description in the metadata of a field."""


class Applies(StrEnum):
    """When a change takes effect."""

    START = "start"
    """Models are loaded with it."""
    ROUND = "round"
    """Running requests have it from their next round on."""
    REQUEST = "request"
    """The next request has it."""
    SCREEN = "screen"
    """Only the screen changes, and at once."""


class Rule(NamedTuple):
    """The range of a setting."""

    words: str
    """The range in words, to follow "it must be"."""
    holds: Callable[[Any], bool]


ONE_OR_MORE = Rule("at least 1", lambda x: x >= 1)


@dataclass(frozen=True, slots=True)
class Setting:
    """One entry of the table of settings."""

    help: str
    """A sentence for lists of options."""
    sign: str = ""
    """Placeholder of a value: N, P, FILE."""
    topic: str = ""
    """One of `TOPICS`."""
    rule: Rule | None = None
    applies: Applies = Applies.REQUEST
    choices: tuple[str, ...] = ()
    """The valid words, if it is one of a few."""
    unit: str = ""
    """Unit of a number in messages."""
    recommended: bool = False
    """Whether a model may recommend a value, which counts unless the user sets one."""
    name: str = ""
    kind: str = ""
    """Its annotation: str, int or float, or one of them and None."""
    default: Any = None

    @property
    def type(self) -> str:
        """The type of its values other than None."""
        return self.kind.partition(" ")[0]

    def check(self, label: str, value: Any) -> None:
        """Check a value; None is valid if the annotation allows it.

        Args:
            label: the name of the setting in messages.
            value: the value.

        Raises:
            EngineError: it is not valid.
        """
        if self.choices and value not in self.choices:
            known = ", ".join(filter(None, self.choices))
            raise EngineError(f"{label} {value!r} is not known: choose one of {known}", self.name)
        if self.rule and not (value is None and self.kind.endswith("None")):
            shown = f"{value:g}" if isinstance(value, float) else value
            check(self.rule.holds(value), f"{label} is {shown}{self.unit}: it must be {self.rule.words}", self.name)


def setting(default: Any, *described: Any, **more: Any) -> Any:
    """A field of a dataclass with a description; `Setting` has the arguments after the default."""
    return field(default=default, metadata={_KEY: Setting(*described, **more)})


def entry(each: Setting) -> Any:
    """A field of another dataclass for a setting."""
    return field(default=each.default, metadata={_KEY: each})


@cache
def settings_of(kind: type) -> dict[str, Setting]:
    """The settings of a dataclass, by name."""
    return {
        each.name: replace(each.metadata[_KEY], name=each.name, kind=str(each.type), default=each.default)
        for each in fields(kind)
        if _KEY in each.metadata
    }


def check_settings(values: Any, space: str = "-") -> None:
    """Check all settings of a dataclass; `space` stands for the underscores of their names in messages.

    Raises:
        EngineError: a value is not valid.
    """
    for name, each in settings_of(values.__class__).items():
        each.check(name.replace("_", space), getattr(values, name))
