"""Writes `assets/shell`, the man page and the completions of bash, zsh and fish, and `docs/settings.md`.

They are made from the command line and the table of settings.

Run: python -m scripts.make_shell_files
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer._completion_shared import get_completion_script

from specchat.app.cli import options
from specchat.app.cli.command_line import app
from specchat.app.cli.options import drafters
from specchat.app.server.protocol import ChatBody
from specchat.app.settings.controls import CONTROLS
from specchat.app.settings.settings import AUTO, TABLE
from specchat.app.settings.settings_file import PHRASES
from specchat.app.ui.action_table import SLASH_COMMANDS
from specchat.app.ui.screens.controls import IN_EFFECT
from specchat.engine import Setting

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "assets" / "shell"
REFERENCE = ROOT / "docs" / "settings.md"
NAME = "specchat"
COMPLETIONS = {"bash": "specchat", "zsh": "_specchat", "fish": "specchat.fish"}
"""The file that each shell looks for."""
ENVIRONMENT = (
    ("SPECCHAT_NAME", "Default of the option of that name, in capitals and with _ for -, such as SPECCHAT_TARGET."),
    ("SPECCHAT_HOME", "A folder for chats, settings and models, instead of the platform's folders."),
    ("SPECCHAT_API_KEY", "The key that serve requires and --attach sends."),
    ("NO_COLOR", "Anything: no colours."),
)

HEAD = (
    "# Settings",
    "",
    "Written by `python -m scripts.make_shell_files` from the table of settings. Each key of `settings.toml` is also a",
    "variable, such as `SPECCHAT_TOP_K`. Details and examples: [command-line.md](command-line.md).",
    "",
    "| key | meaning | values | default | in effect | option | command | field of `serve` |",
    "| --- | --- | --- | --- | --- | --- | --- | --- |",
)


def files() -> dict[str, str]:
    """Each file's name and text."""
    return {f"{NAME}.1": "\n".join(_page()) + "\n", **{file: _completion(of) for of, file in COMPLETIONS.items()}}


def reference() -> str:
    """All settings as a Markdown table."""
    return "\n".join([*HEAD, *map(_row, TABLE.values())]) + "\n"


def _row(each: Setting) -> str:
    """The row of a setting."""
    name, values = each.name, [", ".join(filter(None, each.choices)) or PHRASES[each.type]]
    commands = [control.command for control in CONTROLS if control.name == name]
    commands += [action.command for action in SLASH_COMMANDS if action.command == name]
    cells = (
        f"`{name}`",
        each.help,
        ", ".join([*values, *([each.rule.words] if each.rule else [])]),
        AUTO if each.default is None and name != "seed" else str(each.default or ""),
        IN_EFFECT[each.applies],
        f"`{options.flag(name)}`" if name in {*options.SETTINGS, *options.OF_CHAT, "theme"} else "",
        f"`/{commands[0]}`" if commands else "",
        f"`{name}`" if name in ChatBody.model_fields else "",
    )
    return f"| {' | '.join(cells)} |"


def _completion(shell: str) -> str:
    """What the shell runs to ask specchat itself."""
    return get_completion_script(prog_name=NAME, complete_var=f"_{NAME.upper()}_COMPLETE", shell=shell).strip() + "\n"


def _page() -> Iterator[str]:
    """The lines of the man page, in the macros of man(7)."""
    program: Any = typer.main.get_command(app)
    context = typer.Context(program, info_name=NAME)
    yield f'.TH {NAME.upper()} 1 "" "{NAME}" "User Commands"'
    yield from (".SH NAME", f"{NAME} \\- chat with a local language model and watch speculative decoding")
    yield from (".SH SYNOPSIS", f".B {NAME}", _escaped("[OPTIONS] [COMMAND [ARGUMENTS]]"))
    yield from (".SH DESCRIPTION", _escaped(program.callback.__doc__ or ""), ".PP", _escaped(program.help or ""))
    yield from (".SH OPTIONS", *_options(program, context))
    yield ".SH DRAFTERS"
    for name, summary in drafters():
        yield from _item(name, summary)
    yield ".SH COMMANDS"
    for command, inner in _commands(program, context):
        usage = " ".join([_escaped(inner.command_path), *map(_escaped, command.collect_usage_pieces(inner))])
        yield from (f".SS {usage}", _escaped(" ".join((command.help or "").split())), *_options(command, inner))
    yield ".SH ENVIRONMENT"
    for name, means in ENVIRONMENT:
        yield from _item(name, means)
    yield ".SH FILES"
    yield from _item("settings.toml", "Settings, in the configuration folder of the platform.")
    yield from _item("specchat.db", "The chats, in the data folder of the platform.")


def _commands(group: Any, context: Any) -> Iterator[tuple[Any, Any]]:
    """Every command that does something, with its context."""
    for name, command in group.commands.items():
        inner = typer.Context(command, info_name=name, parent=context)
        if hasattr(command, "commands"):
            yield from _commands(command, inner)
        else:
            yield command, inner


def _options(command: Any, context: Any) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield from _item(*record)


def _item(name: str, means: str) -> Iterator[str]:
    yield from (".TP", f".B {_escaped(name)}", _escaped(" ".join(means.split())))


def _escaped(text: str) -> str:
    """Text that roff prints as it is."""
    text = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    text = "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in text)
    return f"\\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, text in files().items():
        (FOLDER / file).write_text(text, encoding="utf-8")
    REFERENCE.write_text(reference(), encoding="utf-8")
