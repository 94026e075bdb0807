"""The commands and their options. What a command needs is imported when it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specchat.app.cli.commands import models, options
from specchat.app.cli.commands.bench import bench
from specchat.app.cli.commands.compare import Exact, SetUpLeft, SetUpRight, compare
from specchat.app.cli.commands.distill import distill
from specchat.app.cli.commands.evaluate import evaluate
from specchat.app.cli.commands.export import export
from specchat.app.cli.commands.import_chats import import_chats
from specchat.app.cli.commands.screenshot import screenshot
from specchat.app.cli.commands.serve import serve
from specchat.app.cli.commands.theory import theory
from specchat.app.cli.commands.verify import verify
from specchat.app.cli.commands.web import web
from specchat.app.errors import UsageError

if TYPE_CHECKING:
    from specchat.app.side_by_side.duet import SideOptions

app = typer.Typer(
    name="specchat",
    help="Chat with a local language model in the terminal and watch speculative decoding happen, token by token.",
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


@app.callback(invoke_without_command=True)
@options.with_settings
def chat(
    ctx: typer.Context,
    given: options.Given = options.NOTHING,
    theme: Annotated[str | None, typer.Option("--theme", metavar="NAME", help="Colours of the interface.")] = None,
    rejected: options.Rejected = None,
    side_by_side: Annotated[
        bool,
        typer.Option(
            "--side-by-side",
            help="One prompt in two set-ups, each on a clock of its own; or in one and at the server of --attach.",
        ),
    ] = False,
    left: SetUpLeft = None,
    right: SetUpRight = None,
    order: Annotated[
        str | None, typer.Option("--order", metavar="ORDER", help="interleaved or sequential, side by side.")
    ] = None,
    exact: Exact = False,
    attach: options.Attach = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Without a command: chat. The commands' own options go behind them."""
    given = {**given, "theme": theme, "rejected": rejected}
    if version:
        from importlib.metadata import version as installed

        print(f"specchat {installed('specchat')}")
    elif ctx.invoked_subcommand is None:
        from specchat.app.cli.commands.chat import open_chat

        options.check(given)
        if side_by_side:  # options of an engine are those of the left lane's
            options.check_lanes(attach, right, order)
        else:
            options.check_attached(attach, given)
        raise typer.Exit(open_chat(given, _side(side_by_side, left, right, order, exact), attach))
    else:
        given |= {
            "side_by_side": side_by_side or None,
            "left": left,
            "right": right,
            "order": order,
            "exact": exact or None,
            "attach": attach,
        }
        misplaced = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
        if misplaced:
            command = ctx.invoked_subcommand
            raise UsageError(f"{misplaced[0]} goes behind the command: specchat {command} {misplaced[0]} …")


def _side(wanted: bool, left: str | None, right: str | None, order: str | None, exact: bool) -> SideOptions | None:
    if wanted:
        from specchat.app.side_by_side.duet import SideOptions

        return SideOptions(left, right, order or "interleaved", exact)
    for name, value in (("--left", left), ("--right", right), ("--order", order), ("--exact", exact)):
        if value:
            raise UsageError(f"{name} goes with two lanes: specchat --side-by-side {name} …, or specchat compare")
    return None


@app.command()
@options.with_settings
def ask(
    question: Annotated[str | None, typer.Argument(help="The question; text on stdin is added behind it.")] = None,
    given: options.Given = options.NOTHING,
    logit_bias: options.LogitBias = None,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="End the reply before TEXT; may be repeated.")
    ] = None,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="Instructions to the model.")] = None,
    file: Annotated[
        list[Path] | None, typer.Option("--file", metavar="FILE", help="A text behind the question; may be repeated.")
    ] = None,
    template: Annotated[
        str | None, typer.Option("--template", metavar="NAME", help="A saved prompt, before the question.")
    ] = None,
    var: Annotated[
        list[str] | None, typer.Option("--var", metavar="NAME=VALUE", help="Fills in the template; may be repeated.")
    ] = None,
    go_on: Annotated[bool, typer.Option("--continue", help="Go on with the newest chat, and keep it there.")] = False,
    chat: Annotated[
        str | None, typer.Option("--chat", metavar="NAME", help="The same with the chat that has NAME in its title.")
    ] = None,
    save: Annotated[bool, typer.Option("--save", help="Keep question and reply as a new chat.")] = False,
    show_thinking: Annotated[
        bool,
        typer.Option(
            "--show-thinking", help="Print what the model thinks, too; else a line on the terminal says how much it is."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the text.")] = False,
    attach: options.Attach = None,
    trace: Annotated[Path | None, typer.Option("--trace", metavar="FILE", help="Record every round in FILE.")] = None,
    beams: Annotated[
        int | None,
        typer.Option("--beams", metavar="N", help="Search for the N likeliest replies (2 to 16), and print the best."),
    ] = None,
) -> None:
    """Ask one question and print the reply as it comes."""
    from specchat.app.cli.commands.ask import Question, answer

    options.check(given)
    options.check_attached(attach, given)
    asked = Question(
        question,
        system,
        tuple(stop or ()),
        tuple(logit_bias or ()),
        files=tuple(file or ()),
        template=template,
        values=tuple(var or ()),
        chat=chat,
        go_on=go_on,
        save=save,
        show_thinking=show_thinking,
    )
    if beams is not None:
        from specchat.app.cli.commands.ask_beams import answer_with_beams

        elsewhere = {"attach": attach, "trace": trace, "save": save, "chat": chat, "continue": go_on}
        answer_with_beams(asked, given, beams, elsewhere, as_json=as_json)
    elif answer(asked, given, as_json=as_json, trace=trace, attach=attach):
        raise typer.Exit(130)


@app.command()
def replay(file: Annotated[Path, typer.Argument(metavar="FILE", help="A trace that ask --trace recorded.")]) -> None:
    """Play a recorded trace in the interface, at its own speed and without a model."""
    from specchat.app.cli.commands.replay import open_replay

    raise typer.Exit(open_replay(file))


app.command()(serve)
app.command()(web)
app.command()(screenshot)
app.command()(export)
app.command("import")(import_chats)
app.command()(bench)
app.command()(compare)
app.command()(verify)
app.command()(distill)
app.command()(evaluate)
app.command()(theory)
