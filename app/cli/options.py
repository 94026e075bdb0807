"""Command line options. Each is declared once; commands collect the ones they take."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from specchat.app.errors import UsageError
from specchat.app.settings.settings import AUTO, DRAFTERS

MODEL, SAMPLING, DRAFTING, MACHINE = PANELS = ("Model", "Sampling", "Drafting", "Machine")
"""Sections of `--help`."""
CORE_DRAFTERS = (AUTO, "none", "suffix", "model", "head", "combined")
RESEARCH_DRAFTERS = ", ".join(name for name in DRAFTERS if name not in CORE_DRAFTERS)
DOCUMENTATION = (
    "Documentation: the docs folder of the source repository (keys, command line, models, server, benchmarks, theory, "
    "kernels)."
)
EPILOG = f"Research drafters, also values of --drafter: {RESEARCH_DRAFTERS}.\n\n{DOCUMENTATION}"
"""The end of the help of commands that draft."""
Given = Mapping[str, Any]
"""Options that were given, by name; the others are missing, so that variables and the settings file count."""


def opt(name: str, metavar: str | None, text: str, panel: str | None = None, **more: Any) -> Any:
    """An option for the annotation of a parameter."""
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=panel, **more)


def option(kind: Any, name: str, metavar: str | None, text: str, panel: str | None = None, **more: Any) -> Any:
    """An option for a table that `collect` takes."""
    return Annotated[kind | None, opt(name, metavar, text, panel, show_default=False, **more)]


def _gamma(text: str) -> int | str:
    if text == AUTO:
        return text
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a whole number nor auto") from None


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a token id, = and a number, such as 253=-5") from None


SETTINGS: Mapping[str, Any] = {
    "target": option(str, "--target", "MODEL", "A preset, a hub id, a folder or a GGUF file.", MODEL),
    "draft": option(
        list[str],
        "--draft",
        "MODEL",
        "A smaller model that drafts (may be repeated), a draft head, or bigram tables.",
        MODEL,
    ),
    "context": option(int, "--context", "N", "Tokens of prompt and reply together.", MODEL),
    "thinking": option(
        bool,
        "--thinking/--no-thinking",
        None,
        "Switch the model's thinking on or off, where its chat template can.",
        MODEL,
    ),
    "temperature": option(float, "--temperature", "T", "0 is greedy.", SAMPLING),
    "top_k": option(int, "--top-k", "N", "Keep the N likeliest tokens; 0 keeps all.", SAMPLING),
    "top_p": option(float, "--top-p", "P", "Keep the likeliest tokens that make up P.", SAMPLING),
    "min_p": option(float, "--min-p", "P", "Drop tokens below this share of the likeliest.", SAMPLING),
    "seed": option(int, "--seed", "N", "Repeat the same random draws.", SAMPLING),
    "repetition_penalty": option(
        float, "--repetition-penalty", "F", "Above 1: tokens of prompt and reply become less likely.", SAMPLING
    ),
    "presence_penalty": option(
        float, "--presence-penalty", "F", "Above 0: tokens of the reply become less likely.", SAMPLING
    ),
    "max_tokens": option(int, "--max-tokens", "N", "End the reply after N tokens.", SAMPLING),
    "drafter": option(str, "--drafter", "|".join(CORE_DRAFTERS), "What proposes tokens.", DRAFTING),
    "gamma": option(Any, "--gamma", "N|auto", "Tokens to draft each round; auto adapts.", DRAFTING, parser=_gamma),
    "lenience": option(
        float, "--lenience", "L", "Below 1: faster, but no longer the target's exact distribution.", DRAFTING
    ),
    "slots": option(int, "--slots", "N", "Maximum number of concurrent requests.", MACHINE),
    "dtype": option(str, "--dtype", "TYPE", "auto, float32, bfloat16 or float16.", MACHINE),
    "quantize": option(
        str, "--quantize", "auto|q8|q4|none", "On the CPU: 8- or 4-bit weights; auto keeps the file's format.", MACHINE
    ),
    "device": option(str, "--device", "DEVICE", "auto, cpu, cuda, cuda:1, …", MACHINE),
}
"""The options of a model and of its replies, by the names of the settings."""
QUESTION = {
    "logit_bias": option(
        list[Any], "--logit-bias", "ID=BIAS", "Add BIAS to the logit of a token; may be repeated.", parser=_bias
    ),
    "stop": option(list[str], "--stop", "TEXT", "End the reply before TEXT; may be repeated."),
    "system": option(str, "--system", "TEXT", "Instructions to the model."),
    "files": option(list[Path], "--file", "FILE", "Send a text file too; may be repeated."),
    "template": option(str, "--template", "NAME", "A saved prompt, placed before the question."),
    "values": option(list[str], "--var", "NAME=VALUE", "Fill in the template; may be repeated."),
    "newest": option(bool, "--continue", None, "Continue the newest chat, and store the reply there."),
    "chat": option(str, "--chat", "NAME", "Continue the chat that has NAME in its title."),
    "save": option(bool, "--save", None, "Store question and reply as a new chat."),
    "show_thinking": option(
        bool, "--show-thinking", None, "Print the model's thinking too; otherwise a terminal shows only its length."
    ),
}
"""The options of `ask` that make a `Question`."""
MODELS = ("target", "draft", "context", "dtype", "quantize", "device")
"""Options that load models."""
LIMIT = option(int, "--limit", "N", "Prompts of each set.")
PROMPTS = option(list[str], "--prompts", "SET", "chat, code, copy or structured; may be repeated; default: all.")

Attach = Annotated[
    str | None,
    opt(
        "--attach",
        "URL",
        "Use a server of the OpenAI protocol; --target names one of its models (key: SPECCHAT_API_KEY).",
        MODEL,
    ),
]
Theme = Annotated[str | None, opt("--theme", "NAME", "Colours of the interface.")]
SetUpLeft = Annotated[str | None, opt("--left", "SETUP", "Left lane: DRAFTER[:gamma=N|auto,draft=MODEL,target=MODEL].")]
SetUpRight = Annotated[str | None, opt("--right", "SETUP", "Right lane; default: the best drafter.")]
Exact = Annotated[bool, opt("--exact", None, "Batch-invariant target passes: bit-identical texts, slightly slower.")]
Json = Annotated[bool, opt("--json", None, "Print one JSON object instead of the text.")]


def settings(*names: str) -> Mapping[str, Any]:
    """The named options of `SETTINGS`."""
    return {name: SETTINGS[name] for name in names}


def collect(**groups: Mapping[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator that adds the options of each group to a command.

    The parameter with the name of a group is replaced by the group's options. The command gets the given options
    as a dict, with tuples instead of lists.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            options = groups.get(parameter.name)
            if options is None:
                parameters.append(parameter)
            else:
                kind = inspect.Parameter.KEYWORD_ONLY
                parameters += [
                    inspect.Parameter(f"{parameter.name}_{name}", kind, default=None, annotation=annotation)
                    for name, annotation in options.items()
                ]
        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]

        @wraps(command)
        def run(**values: Any) -> None:
            for group, options in groups.items():
                given = {name: values.pop(f"{group}_{name}") for name in options}
                values[group] = {name: _converted(name, value) for name, value in given.items() if value is not None}
            command(**values)

        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def _converted(name: str, value: Any) -> Any:
    """A given value in the form that the settings have."""
    if name == "draft":
        return ",".join(value)
    if name == "thinking":
        return "on" if value else "off"
    return tuple(value) if isinstance(value, list) else value


def command_line() -> str:
    """The command line of this process, for reports."""
    return shlex.join(["specchat", *sys.argv[1:]])


def as_argument(name: str, value: object) -> str:
    """A given option of `SETTINGS` as it is written on a command line."""
    if name == "thinking":
        return "--thinking" if value == "on" else "--no-thinking"
    return f"--{name.replace('_', '-')}={value}"


def check(given: Given, attach: str | None = None) -> None:
    """Check that options do not contradict each other.

    Raises:
        UsageError: they do, or one is of the engine and a server is used instead.
    """
    if given.get("drafter") == "none":
        for name in ("gamma", "draft"):
            value = given.get(name)
            if value and value != AUTO:
                raise UsageError(
                    f"--{name} {value} contradicts --drafter none, which drafts nothing: leave one of them out"
                )
    for name in ("draft", "slots", "context", "dtype", "quantize", "device", "lenience") if attach else ():
        if name in given:
            raise UsageError(f"--{name} contradicts --attach: the server at {attach} was started with its own")


def check_lanes(attach: str | None, right: str | None, order: str | None) -> None:
    """Check that nothing is said of the right lane if that is a server.

    Raises:
        UsageError: something is.
    """
    for name, value in (("--right", right), ("--order", order)) if attach else ():
        if value is not None:
            raise UsageError(f"{name} contradicts --attach: the server is the right lane, asked after the left one")


def _write_sections(command: Any, context: Any, formatter: Any) -> None:
    """Write arguments and options in sections by `rich_help_panel`, as plain text."""
    sections: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Arguments", "Options", *PANELS)}
    for parameter in command.get_params(context):
        if record := parameter.get_help_record(context):
            title = "Arguments" if parameter.param_type_name == "argument" else "Options"
            sections[parameter.rich_help_panel or title].append(record)
    for title, records in sections.items():
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


class Command(TyperCommand):
    """Command whose options are grouped in its help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options in sections."""
        _write_sections(self, ctx, formatter)


class Group(TyperGroup):
    """Group whose own options are grouped in its help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options in sections, then the commands."""
        _write_sections(self, ctx, formatter)
        self.format_commands(ctx, formatter)
