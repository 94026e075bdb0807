"""Command line options. Each is declared once; commands collect the ones they take."""

import inspect
import shlex
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from itertools import product
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from specchat import engine
from specchat.app.errors import UsageError, explained
from specchat.app.paths import settings_file
from specchat.app.sanitize import without_password
from specchat.app.settings.settings import AUTO, TABLE
from specchat.app.settings.settings_file import KINDS, PHRASES
from specchat.engine import MODEL, TOPICS, Applies, Setting

DOCUMENTATION = (
    "Documentation: the docs folder of the source repository (keys, command line, settings, models, server, "
    "benchmarks, theory, kernels, GPU)."
)
Given = Mapping[str, Any]
"""Options that were given, by name; the others are missing, so that variables and the settings file count."""


_FLAGS = {
    "batches": "batch", "begin": "from", "drafters": "drafter", "dry_sequence_breakers": "dry-sequence-breaker",
    "files": "file", "gammas": "gamma", "newest": "continue", "peers": "peer", "temperatures": "temperature",
    "values": "var",
}  # fmt: skip
"""Names of options that differ from the names of their parameters."""


def opt(name: str, metavar: str | None, text: str, panel: str | None = None, **more: Any) -> Any:
    """An option for the annotation of a parameter."""
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=panel, **more)


def flag(name: str) -> str:
    """The option of a parameter, without a value."""
    return f"--{_FLAGS.get(name, name).replace('_', '-')}"


def table(panel: str | None = None, /, **rows: tuple[Any, str | None, str]) -> dict[str, Any]:
    """Options for `collect`, by parameter: type or parser of one value, metavar, help."""
    options = {}
    for name, (kind, metavar, text) in rows.items():
        names = "--thinking/--no-thinking" if name == "thinking" else flag(name)
        more: dict[str, Any] = {}
        if kind in (_gamma, _bias, _text):
            more["parser"] = kind
            kind = list[Any] if kind is _bias else Any
        elif kind in (int, float, list[int], list[float]):
            of_one = next(iter(get_args(kind)), kind)
            more["parser"] = _number(of_one, name)
            kind = Any if kind is of_one else list[Any]
        options[name] = Annotated[kind | None, opt(names, metavar, text, panel, show_default=False, **more)]
    return options


def _number(kind: type[Any], name: str) -> Callable[[str], Any]:
    """A parser of the values of an option."""
    rule = TABLE[name].rule if name in TABLE else None
    takes = f"{PHRASES[kind.__name__]} {rule.words}" if rule else PHRASES[kind.__name__]

    def parse(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise UsageError(f"{flag(name).lstrip('-')} is {text!r}: it must be {takes}") from None

    return parse


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


def _text(file: str) -> str:
    """The text of a file, of a pipe such as bash's `<(…)`, or of stdin for `-`."""
    from specchat.app.chat.attachments import LONGEST_FILE, read_text_file, text_of

    if not file.strip() or file.lstrip().startswith("{"):
        raise UsageError(f"a file is wanted, not {file!r}: name one, or give - and the text on stdin")
    if file == "-":
        return text_of(sys.stdin.buffer.read(LONGEST_FILE), "stdin")
    if not Path(file).is_fifo():
        return read_text_file(Path(file), file)
    with explained(f"{file} cannot be read"), open(file, "rb") as pipe:
        return text_of(pipe.read(LONGEST_FILE), file)


def _option(each: Setting) -> Any:
    """The option of a setting."""
    sign = f"N|{AUTO}" if each.name == "gamma" else each.sign or "|".join(each.choices)
    special = {"draft": list[str], "gamma": _gamma, "thinking": bool, "keep_cache": bool}
    kind = special.get(each.name, KINDS[each.type])
    return table(each.topic or None, **{each.name: (kind, None if kind is bool else sign, each.help)})[each.name]


OF_CHAT = {name: _option(TABLE[name]) for name in ("rejected", "keep_cache")}
"""Options of the app alone."""
SETTINGS: Mapping[str, Any] = {
    each.name: _option(each)
    for topic, applies in product(TOPICS, Applies)
    for each in TABLE.values()
    if (each.topic, each.applies) == (topic, applies) and each.name not in OF_CHAT
}
"""The options of a model and of its replies, by the names of the settings."""
CONSTRAINTS = table(
    schema=(_text, "FILE", "The reply is JSON that follows the JSON schema in FILE."),
    json_object=(bool, None, "The reply is a JSON object."),
    regex=(str, "R", "The reply matches the regular expression R."),
    grammar=(_text, "FILE", "The reply follows the grammar in FILE: Lark, or GBNF."),
    choice=(list[str], "TEXT", "The reply is TEXT; may be repeated: one of the texts."),
)
"""The options that make a constraint of the reply."""
QUESTION = CONSTRAINTS | table(
    logit_bias=(_bias, "ID=BIAS", "Add BIAS to the logit of a token; may be repeated."),
    dry_sequence_breakers=(list[str], "TEXT", "DRY does not look beyond TEXT; may be repeated; none: nothing."),
    stop=(list[str], "TEXT", "End the reply before TEXT; may be repeated."),
    stop_repeats=(bool, None, "End a reply that repeats itself."),
    system=(str, "TEXT", "Instructions to the model."),
    files=(list[Path], "FILE", "Send a text file too; may be repeated."),
    template=(str, "NAME", "A saved prompt, placed before the question."),
    values=(list[str], "NAME=VALUE", "Fill in the template; may be repeated."),
    newest=(bool, None, "Continue the newest chat, and store the reply there."),
    chat=(str, "NAME", "Continue the chat that has NAME in its title."),
    save=(bool, None, "Store question and reply as a new chat."),
    show_thinking=(bool, None, "Print the model's thinking too; otherwise a terminal shows only its length."),
)
"""The options of `ask` that make a `Question`."""
TOOLS = table(
    mcp=(list[str], "NAME", "Offer the tools of an MCP server of the settings file; may be repeated."),
    allow_tools=(str, "A,B", "Tools that are called without asking."),
)
"""The options of `ask` for tools."""
MODELS = ("target", "draft", "context", "dtype", "quantize", "device", "tokenizer", "chat_template")
"""Options that load models."""
PROMPT_SETS = table(
    prompts=(list[str], "SET|FILE", "chat, code, copy and structured (the default), schemas, or a data set."),
    limit=(int, "N", "Prompts of each set."),
)


def _address(url: str | None) -> str | None:
    if url is not None and not url.strip():
        raise UsageError("--attach is empty: give the address of a server, or leave it out")
    return url


_ATTACH = "Use a server of the OpenAI protocol; --target names one of its models (key: SPECCHAT_API_KEY)."
_ATTACH_RIGHT = "A server as the right lane, asked after the left."
Attach = Annotated[str | None, opt("--attach", "URL", _ATTACH, MODEL, callback=_address)]
AttachRight = Annotated[str | None, opt("--attach", "URL", _ATTACH_RIGHT, callback=_address)]


def known_theme(name: str | None) -> str | None:
    """The name of a theme; None and the empty name are specchat's own.

    Raises:
        SettingsError: it is that of a file which is no theme.
        UsageError: there is no such theme.
    """
    if name:
        from specchat.app.ui.own_files import own_themes, read_theme
        from specchat.app.ui.themes import check_theme

        themes, _ = own_themes(settings_file())
        names = [theme.name for theme in themes]
        if name not in names and (file := settings_file().parent / "themes" / f"{name}.toml").exists():
            read_theme(file)
        check_theme(name, names)
    return name


Theme = Annotated[str | None, opt("--theme", "NAME", "Colours; default: those of the settings.", callback=known_theme)]
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
    if isinstance(value, bool) and name in TABLE:
        return "on" if value else "off"
    return tuple(value) if isinstance(value, list) else value


def drafters() -> list[tuple[str, str]]:
    """Values of --drafter and what they draft."""
    auto = "the best one that the loaded models allow"
    entries = sorted(engine.DRAFTERS.values(), key=lambda entry: entry.research)
    return [(AUTO, auto), *((entry.name, entry.summary) for entry in entries)]


def command_line() -> str:
    """The command line of this process, for reports."""
    return shlex.join(["specchat", *sys.argv[1:]])


def as_argument(name: str, value: object) -> str:
    """A given option of `SETTINGS` as it is written on a command line."""
    if name == "thinking":
        return "--thinking" if value == "on" else "--no-thinking"
    return f"{flag(name)}={value}"


def check(given: Given, attach: str | None = None) -> None:
    """Check that options do not contradict each other.

    Raises:
        UsageError: they do, or one is of the engine and a server is used instead.
    """
    if given.get("drafter") == "none":
        for name in ("gamma", "draft"):
            value = given.get(name)
            if value and value != AUTO:
                raise UsageError(f"--{name} {value} contradicts --drafter none, which drafts nothing: leave one out")
    address = without_password(attach or "")
    for name in (*MODELS[1:], "slots", "cache_memory", "cache_type", "lenience") if attach else ():
        if name in given:
            raise UsageError(f"--{name} contradicts --attach: the server at {address} was started with its own")


def check_lanes(attach: str | None, right: str | None, order: str | None) -> None:
    """Check that nothing is said of the right lane if that is a server.

    Raises:
        UsageError: something is.
    """
    for name, value in (("--right", right), ("--order", order)) if attach else ():
        if value is not None:
            raise UsageError(f"{name} contradicts --attach: the server is the right lane, asked after the left one")


def _write_sections(command: Any, context: Any, formatter: Any) -> None:
    """Write arguments, options by `rich_help_panel`, and what the values of --drafter mean, as plain text."""
    sections: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Arguments", "Options", *TOPICS)}
    for parameter in command.get_params(context):
        if record := parameter.get_help_record(context):
            title = "Arguments" if parameter.param_type_name == "argument" else "Options"
            sections[parameter.rich_help_panel or title].append(record)
            if parameter.opts == ["--drafter"]:
                sections["Drafters"] = drafters()
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
