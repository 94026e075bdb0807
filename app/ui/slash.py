"""Slash commands as they are typed: parsing, completion with tab, and hints. They are in `app.ui.action_table`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from specchat.app.chat.tray import completions
from specchat.app.errors import UsageError
from specchat.app.settings.controls import BY_COMMAND
from specchat.app.ui.action_table import SLASH_COMMANDS, Action

MODEL_WORDS = ("/think", "/no_think", "/nothink")
"""First words of prompts to Qwen3, SmolLM3 or GLM-4.5, which are for the model, as are words from its template."""
_COMMANDS = {action.command: action for action in SLASH_COMMANDS}
BY_NAME = _COMMANDS | {alias: _COMMANDS[control.command] for alias, control in BY_COMMAND.items()}
Words = Mapping[str, Callable[[], Sequence[str]]]
"""The arguments that can be completed, by command."""


def is_command(text: str) -> bool:
    """Whether the text is a command for specchat: it begins with one slash, not two, and not with a model's word."""
    return text.startswith("/") and not text.startswith("//") and first_word(text) not in MODEL_WORDS


def first_word(text: str) -> str:
    """The text up to the first space."""
    return next(iter(text.split(maxsplit=1)), "")


def unescaped(text: str) -> str:
    """The prompt: two slashes at its beginning stand for one."""
    return text[1:] if text.startswith("//") else text


def escaped(prompt: str) -> str:
    """The text to type for a prompt, the reverse of `unescaped`."""
    return f"/{prompt}" if is_command(prompt) or prompt.startswith("//") else prompt


def parse(text: str) -> tuple[Action, str]:
    """The command of a line, and its argument.

    Raises:
        UsageError: there is no such command, or its argument is missing or not allowed.
    """
    first, *rest = text[1:].split(maxsplit=1) if text[1:2].strip() else [""]
    argument = "".join(rest).strip()
    command = BY_NAME.get(first)
    if command is None:
        near = [name for name in _COMMANDS if first and name.startswith(first[:2])]
        meant = f"/{near[0]}?" if len(near) == 1 else "/help lists them"
        raise UsageError(f"/{first} is not a command ({meant}): begin with // to send a text that starts with a slash")
    if command.needs and not argument:
        raise UsageError(f"/{command.command} needs a value; usage: /{command.slash}")
    if argument and not command.takes:
        raise UsageError(f"/{command.command} takes no argument")
    return command, argument


def matches(text: str, words: Words) -> list[str]:
    """The lines that this one may be the beginning of."""
    name, space, argument = text[1:].partition(" ")
    if not space:
        return [entry.line for entry in menu(text, words)]
    known = words[name]() if name in words and "\n" not in argument else ()
    return [f"/{name} {word}" for word in known if word.startswith(argument)]


def completed(text: str, words: Words) -> str:
    """The line, completed up to the first choice."""
    return max(common_start(matches(text, words)), text, key=len)


def common_start(texts: Iterable[str]) -> str:
    """The longest common prefix of texts."""
    common = takewhile(lambda characters: len(set(characters)) == 1, zip(*texts, strict=False))
    return "".join(characters[0] for characters in common)


class Entry(NamedTuple):
    """An entry of the menu."""

    name: str
    about: str = ""
    line: str = ""
    """The line that it stands for; empty for a heading."""


def menu(text: str, words: Words) -> list[Entry]:
    """Commands that the line may be the beginning of; or its command as a heading, and values of the argument."""
    name, space, _argument = text[1:].partition(" ")
    if not space:
        commands = (action for action in SLASH_COMMANDS if action.command.startswith(name))
        return [Entry(f"/{a.slash}", a.about, f"/{a.command}{' ' if a.takes else ''}") for a in commands]
    if (command := BY_NAME.get(name)) is None:
        return []
    values = [Entry(line.partition(" ")[2], "", line) for line in matches(text, words)]
    return [Entry(f"/{command.slash}", command.about), *values]


class Completer:
    """Completes a text up to the first choice; further calls go through the alternatives."""

    def __init__(self) -> None:
        self._stem: str | None = None
        """The command line of the first call."""
        self._paths: list[str] = []
        """The alternatives of a path."""

    def command(self, text: str, words: Words) -> str | None:
        """The completed command line; None without one. `words` are the values that commands accept."""
        found = matches(self._stem, words) if self._stem is not None else []
        if text in found:
            return found[(found.index(text) + 1) % len(found)]
        further = completed(text, words)
        if further != text:
            self._stem = None
            return further
        self._stem = text
        return next((line for line in matches(text, words) if line != text), None)

    def path(self, typed: str) -> tuple[str, bool] | None:
        """The completed path, and whether it is the complete name of a file; None without one."""
        if typed in self._paths:
            return self._paths[(self._paths.index(typed) + 1) % len(self._paths)], False
        found = completions(typed)
        common = common_start(found)
        if len(found) == 1 or len(common) > len(typed):
            return common, len(found) == 1 and not common.endswith("/")
        if not found:
            return None
        self._paths = found
        return found[0], False
