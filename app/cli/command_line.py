"""The commands and their options. What a command needs is imported when it runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from specchat.app.cli import options
from specchat.app.cli.commands import models
from specchat.app.cli.commands.bench import bench
from specchat.app.cli.commands.chat_files import export, import_chats, screenshot
from specchat.app.cli.commands.compare import compare
from specchat.app.cli.commands.distill import distill
from specchat.app.cli.commands.evaluate import evaluate
from specchat.app.cli.commands.serve import serve, web
from specchat.app.cli.commands.theory import theory
from specchat.app.cli.commands.verify import verify
from specchat.app.cli.options import opt
from specchat.app.errors import UsageError

app = typer.Typer(
    name="specchat",
    cls=options.Group,
    help="Chat with a local language model in the terminal and watch speculative decoding happen, token by token.",
    epilog=options.DOCUMENTATION,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(models.app, name="models")


def execute(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code.

    Raises:
        UsageError: it has an unknown command or option, or a value of the wrong kind.
        KeyboardInterrupt: the user ended it.
    """
    try:
        return app(list(arguments), prog_name="specchat", standalone_mode=False) or 0
    except typer.TyperException as error:
        sentence = error.format_message()
        if sentence.startswith("No such command"):
            sentence = f'{sentence.rstrip(".")} (to ask a question: specchat ask "…")'
        raise UsageError(sentence) from error
    except typer.Abort:
        raise KeyboardInterrupt from None


_SIDE = "One prompt in two setups, each with its own clock; with --attach, also a server."


@app.callback(invoke_without_command=True)
@options.collect(given=options.SETTINGS, own=options.OF_CHAT)
def chat(
    ctx: typer.Context,
    given: options.Given,
    *,
    theme: options.Theme = None,
    own: options.Given,
    side_by_side: Annotated[bool, opt("--side-by-side", None, _SIDE)] = False,
    left: options.SetUpLeft = None,
    right: options.SetUpRight = None,
    order: Annotated[str | None, opt("--order", "ORDER", "interleaved or sequential, side by side.")] = None,
    exact: options.Exact = False,
    attach: options.Attach = None,
    version: Annotated[bool, opt("--version", None, "Print the version.")] = False,
) -> None:
    """Chat, if no command is given. Put options of a command after the command."""
    given = {**given, "theme": theme, **own}
    side = {"left": left, "right": right, "order": order, "exact": exact or None}
    if version:
        from importlib.metadata import version as installed

        print(f"specchat {installed('specchat')}")
    elif command := ctx.invoked_subcommand:
        given |= {"side_by_side": side_by_side or None, **side, "attach": attach}
        for name, value in given.items():
            if value is not None:
                flag = options.flag(name)
                raise UsageError(f"put {flag} after the command: specchat {command} {flag} …")
    else:
        from specchat.app.cli.commands.chat import open_chat

        # Side by side, options of an engine belong to the lane on this machine.
        options.check(given, None if side_by_side else attach)
        both = None
        if side_by_side:
            from specchat.app.side_by_side.duet import SideOptions

            options.check_lanes(attach, right, order)
            both = SideOptions(left, right, order or "interleaved", exact)
        for name, value in side.items():
            if value is not None and not side_by_side:
                raise UsageError(f"--{name} goes with two lanes: specchat --side-by-side --{name} …, or compare")
        raise typer.Exit(open_chat(given, both, attach))


@app.command(cls=options.Command, epilog=options.DOCUMENTATION)
@options.collect(given=options.SETTINGS, parts=options.QUESTION, tools=options.TOOLS)
def ask(
    given: options.Given,
    parts: options.Given,
    tools: options.Given,
    question: Annotated[str | None, typer.Argument(help="The question; text on stdin is added to it.")] = None,
    as_json: options.Json = False,
    attach: options.Attach = None,
    trace: Annotated[Path | None, opt("--trace", "FILE", "Record every round in FILE.")] = None,
    beams: Annotated[int | None, opt("--beams", "N", "Search for the N likeliest replies, print the best.")] = None,
) -> None:
    """Ask one question and print the reply as it is generated."""
    from specchat.app.cli.commands.ask import answer, answer_with_beams
    from specchat.app.cli.question import Question

    options.check(given, attach)
    whole = Question(question, **parts)
    if beams is not None:
        for name, value in {"attach": attach, "trace": trace, **parts, **tools}.items():
            if value and name in ("attach", "trace", "save", "chat", "newest", "mcp", "allow_tools"):
                raise UsageError(f"{options.flag(name)} does not go with --beams, which stores no reply: leave one out")
        answer_with_beams(whole, given, beams, as_json=as_json)
        return
    from specchat.app.cli.tools import offered_tools

    allowed = [name.strip() for name in tools.get("allow_tools", "").split(",") if name.strip()]
    with offered_tools(tools.get("mcp", ()), allowed) as offered:
        cancelled = answer(whole, given, as_json=as_json, trace=trace, attach=attach, offered=offered)
    if cancelled:
        raise typer.Exit(130)


@app.command()
def replay(file: Annotated[Path, typer.Argument(metavar="FILE", help="A trace that ask --trace recorded.")]) -> None:
    """Play a recorded trace in the interface, at its own speed and without a model."""
    from specchat.app.cli.commands.chat import open_replay

    raise typer.Exit(open_replay(file))


for command in (serve, web, bench, compare, verify, evaluate, distill, theory, screenshot, export):
    app.command(cls=options.Command, epilog=options.DOCUMENTATION)(command)
app.command("import")(import_chats)
