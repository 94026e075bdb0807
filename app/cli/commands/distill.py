"""`specchat distill`: makes a draft for a target, on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

from specchat.app.cli import options
from specchat.app.cli.options import opt
from specchat.app.cli.progress import pull_progress, warn
from specchat.app.errors import AppError, UsageError, explained
from specchat.app.paths import database_file
from specchat.engine import models_folder
from specchat.engine.models import DEFAULT_PRESET

if TYPE_CHECKING:
    from specchat.engine.tools.distill import Distilled

_OPTIONS = {
    **options.settings("target"),
    **options.table(
        kind=(
            str,
            "eagle|medusa|block|pass|bigram",
            "One-layer (default) or Medusa heads, a block drafter, look-ahead embeddings, bigrams.",
        ),
        begin=(
            str,
            "HEAD",
            "A finished draft of the same target and kind to start from: its folder, which is not changed, or "
            "smollm2-135m for the head that comes with specchat.",
        ),
        minutes=(float, "M", "Time for text and training, over all calls."),
        prompts=(
            Path,
            "FILE",
            "Prompts for training, one per line; in a .jsonl file the user turns of a conversation per line, as "
            '{"turns": ["Hello", "Tell me more"]}.',
        ),
        text=(
            list[Path],
            "FILE|FOLDER",
            "For --kind bigram, the text to count: plain text, or the replies in chats and traces (.json, .jsonl). For "
            "other kinds, the folder of an earlier distillation whose text is used: alone, or with --prompts in "
            "addition to new text. May be repeated.",
        ),
    ),
    **options.settings("slots", "context", "dtype", "device"),
}


@options.collect(given=_OPTIONS)
def distill(
    given: options.Given,
    out: Annotated[Path, opt("--out", "FOLDER", "Folder of the draft.")],
    chats: Annotated[
        bool,
        opt(
            "--chats",
            None,
            "Learn from the stored chats with this model, with --from; the newest are held out, and acceptance on them "
            "is printed before and after. Their text is deleted from the folder at the end.",
        ),
    ] = False,
    as_json: Annotated[bool, opt("--json", None, "Print each step, and what was reached, as JSON on a line.")] = False,
) -> None:
    """Make a draft for a target, or train a finished one further.

    The same call again continues an interrupted one; more minutes train the draft further.
    """
    from specchat.app.chat.stored_conversation import write_chats
    from specchat.app.storage.store import Store
    from specchat.engine.tools.distill import COUNTED, DistillOptions, read_turns
    from specchat.engine.tools.distill import distill as run

    for name in ("minutes", "prompts") if "text" in given and given.get("kind") == COUNTED else ():
        if name in given:
            raise UsageError(f"--{name} contradicts --text, which is counted as it is: leave one of them out")
    values = {"target": DEFAULT_PRESET, **given}
    if "prompts" in given:
        values["prompts"] = read_turns(given["prompts"])
    with TemporaryDirectory(prefix="specchat-") as folder:
        file = Path(folder) / "chats.jsonl" if chats else None
        chosen = DistillOptions(models=models_folder(), out=out, chats=file, **values)
        if file is not None:
            with Store(database_file()) as store:
                warn(store.notice)
                write_chats(store, chosen.target, file)
        with explained(f"{out} cannot be written", AppError), pull_progress(as_json=as_json) as progress:
            made = run(chosen, progress)
    if as_json:
        figures = {"before": made.before, "after": made.reached}
        print(json.dumps({each: reached["greedy"].emitted_per_round for each, reached in figures.items() if reached}))
    else:
        _print(made, out)


def _print(made: Distilled, out: Path) -> None:
    noun = made.noun[0].upper() + made.noun[1:]
    before = f" ({made.steps_before:,} of them before)" if made.steps_before else ""
    steps = f"{made.steps:,} steps{before}, " if made.steps else ""
    counts = f"{made.tokens:,} tokens of text, {steps}{made.minutes:g} minutes"
    print(f"{noun} for {made.target}: {counts}.")
    if made.reached:
        held_out = "the newest chats, which were" if made.before else "prompts,"
        print(f"On {held_out} held out, drafting {made.gamma} tokens a round:\n")
        print(f"{'':22}{'accepted / tested':>18}   tokens per round   by position")
    rows = {f"{name}, before": reached for name, reached in made.before.items()} | dict(made.reached)
    for name, reached in rows.items():
        places = " ".join(f"{100 * rate:3.0f}" for rate in reached.by_position)
        print(f"{name:22}{100 * reached.rate:16.0f} %   {reached.emitted_per_round:16.2f}   {places} %")
    print(f"\nUse it with: specchat --draft {out}")
