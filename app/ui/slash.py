"""Slash commands: their names and arguments, parsing and completion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from specchat.app.chat.export import FORMATS
from specchat.app.errors import UsageError
from specchat.app.settings.controls import BY_COMMAND, CONTROLS
from specchat.app.settings.settings import REJECTED, THINKING

COPIES = ("reply", "code", "chat", "thinking")
PASSED_ON = ("/think", "/no_think", "/nothink")
"""What begins a prompt to Qwen3, SmolLM3 or GLM-4.5, and is for the model. Other words its chat template names."""


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """One command. `takes` is a sign for its argument; empty if it has none."""

    name: str
    takes: str
    means: str
    needs: bool = False
    """Whether it does nothing without an argument."""

    @property
    def usage(self) -> str:
        """As it is typed."""
        return f"/{self.name} {self.takes}".rstrip()


_SIGNS = {"gamma": "N|auto", "drafter": "NAME", "temp": "T", "top-k": "N", "top-p": "P", "min-p": "P", "seed": "N|off",
          "lenience": "L", "max-tokens": "N", "context": "WHAT",
          "rejected": "|".join(REJECTED)}  # fmt: skip
_SHOWS = ("context",)
"""Commands of controls that show something where no value is given."""

COMMANDS: tuple[SlashCommand, ...] = (
    *(
        SlashCommand(c.command, _SIGNS[c.command], c.means, needs=c.command not in _SHOWS)
        for c in CONTROLS
        if not c.by_template
    ),
    SlashCommand("model", "TARGET DRAFT", "load other models; without a name: those there are, to choose from"),
    SlashCommand("draft", "NAME|none", "let another model draft, or none", needs=True),
    SlashCommand("unload", "", "free the memory of the models; the next prompt loads them again"),
    SlashCommand("controls", "", "the panel of all controls"),
    SlashCommand("preset", "NAME", "set all controls as they were saved", needs=True),
    SlashCommand("save", "NAME", "save all controls as a preset", needs=True),
    SlashCommand("candidates", "N PROMPT", "N replies to one prompt, of which one goes on"),
    SlashCommand("messages", "", "the messages of this chat, and other versions of them"),
    SlashCommand("edit", "N", "write another version of message N, or of the last one"),
    SlashCommand("regenerate", "N", "another reply to message N"),
    SlashCommand("continue", "N", "another reply that goes on where that to message N ended"),
    SlashCommand("fork", "N", "a new chat with the messages up to N"),
    SlashCommand("theme", "NAME", "other colours", needs=True),
    SlashCommand("copy", "WHAT", f"{', '.join(COPIES)}: of the last reply, or all; code N is one block"),
    SlashCommand("markdown", "", "replies as Markdown, also while they are written, or token by token"),
    SlashCommand("open", "N", "a link of the replies in sight, in the browser"),
    SlashCommand("thinking", "|".join(THINKING), "whether the model thinks in this chat, if it can be told"),
    SlashCommand("thoughts", "", "show the thinking of replies, or fold it"),
    SlashCommand("export", "|".join(FORMATS), "write the chat to a file", needs=True),
    SlashCommand("system", "NAME|off", "instructions to the model in this chat; without a name to be written"),
    SlashCommand("system-save", "NAME", "save this chat's system prompt", needs=True),
    SlashCommand("system-default", "", "let new chats begin with this chat's system prompt"),
    SlashCommand("template", "NAME", "a saved prompt; its {{variables}} are asked for", needs=True),
    SlashCommand("template-save", "NAME", "save the last prompt as a template", needs=True),
    SlashCommand("attach", "PATH", "send a text file along with the prompt, as @PATH in it does", needs=True),
    SlashCommand("attachments", "", "open, expand or remove what is attached, to this prompt and to earlier ones"),
    SlashCommand("editor", "", "write the prompt in the editor that VISUAL or EDITOR names"),
    SlashCommand("search", "", "find words in all chats"),
    SlashCommand("pin", "", "let this chat stand above the others, or among them again"),
    SlashCommand("theory", "", "what the paper predicts for this reply, drawn"),
    SlashCommand("drafts", "A B", "which tokens of this reply drafter A has and B has not, and the reverse"),
    SlashCommand("new", "", "begin an empty chat"),
    SlashCommand("tour", "", "draft, verify, accept, reject, correct, bonus: a screen each"),
    SlashCommand("help", "", "keys, commands, figures"),
)
BY_NAME = {command.name: command for command in COMMANDS} | {
    alias: next(c for c in COMMANDS if c.name == control.command) for alias, control in BY_COMMAND.items()
}
Words = Mapping[str, Callable[[], Sequence[str]]]
"""The arguments that can be completed, by command."""


def is_command(text: str) -> bool:
    """Whether the text is for specchat and not for the model: one slash, not two, begins it, and no word for that."""
    return text.startswith("/") and not text.startswith("//") and first_word(text) not in PASSED_ON


def first_word(text: str) -> str:
    """What stands before the first space."""
    return next(iter(text.split(maxsplit=1)), "")


def unescaped(text: str) -> str:
    """The prompt: two slashes at its beginning stand for one."""
    return text[1:] if text.startswith("//") else text


def parse(text: str) -> tuple[SlashCommand, str]:
    """The command of a line, and its argument.

    Raises:
        UsageError: there is no such command, or it lacks its argument.
    """
    name, _, argument = text[1:].partition(" ")
    first, *rest = name.split("\n", 1)
    argument = "\n".join([*rest, argument]).strip() if rest else argument.strip()
    command = BY_NAME.get(first)
    if command is None:
        near = [known.name for known in COMMANDS if first and known.name.startswith(first[:2])]
        meant = f"/{near[0]}?" if len(near) == 1 else "/help lists them"
        raise UsageError(f"/{first} is no command ({meant}): begin with // to send a text that starts with a slash")
    if command.needs and not argument:
        raise UsageError(f"/{command.name} lacks its value: it is used as {command.usage}")
    if argument and not command.takes:
        raise UsageError(f"/{command.name} takes nothing behind it, and got {argument!r}")
    return command, argument


def matches(text: str, words: Words) -> list[str]:
    """The lines that this one may be the beginning of."""
    name, space, argument = text[1:].partition(" ")
    if not space:
        return [f"/{c.name}{' ' if c.takes else ''}" for c in COMMANDS if c.name.startswith(name)]
    known = words[name]() if name in words and "\n" not in argument else ()
    return [f"/{name} {word}" for word in known if word.startswith(argument)]


def completed(text: str, words: Words) -> str:
    """The line as far as it can be completed without a choice."""
    found = matches(text, words)
    if not found:
        return text
    return max(common_start(found), text, key=len)


def common_start(texts: Iterable[str]) -> str:
    """What all of these begin with."""
    common = takewhile(lambda characters: len(set(characters)) == 1, zip(*texts, strict=False))
    return "".join(characters[0] for characters in common)


def hints(text: str, words: Words) -> Iterable[tuple[str, str]]:
    """What the line may become, with what it does."""
    name, space, _argument = text[1:].partition(" ")
    command = BY_NAME.get(name)
    if not space:
        return [(c.usage, c.means) for c in COMMANDS if c.name.startswith(name)]
    if command is None:
        return []
    values = [line.partition(" ")[2] for line in matches(text, words)]
    return [(command.usage, command.means), *([(" · ".join(values), "")] if values else [])]
