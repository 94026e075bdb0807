"""`specchat ask --beams N`: the likeliest replies to one question, best first."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from specchat.app.cli.commands.ask import Question
from specchat.app.cli.printers import text_printer
from specchat.app.cli.status_line import StatusLine
from specchat.app.errors import UsageError
from specchat.app.paths import settings_file
from specchat.app.sanitize import clean_prompt, escape_controls
from specchat.app.settings.settings import NO_SWITCH
from specchat.app.settings.settings_file import load_settings
from specchat.engine import Finished, Loading, models_folder

if TYPE_CHECKING:
    from specchat.engine.tools.beams import FoundBeams

_WIDTH = 100
"""Columns of a line about a beam where no terminal says how many there are."""


def answer_with_beams(
    question: Question, options: Mapping[str, object], beams: int, elsewhere: Mapping[str, object], *, as_json: bool
) -> None:
    """Search for the beams and print them: the best one's text on stdout, all of them and what they took on stderr.

    Args:
        question: what is asked.
        options: those of the settings, None where not given.
        beams: N.
        elsewhere: options of `ask` that beams do not go with, and what was given for them.
        as_json: whether one JSON object is printed instead.

    Raises:
        AppError, EngineError: a sentence for the user; nothing has been printed then.
    """
    for name, value in elsewhere.items():
        if value:
            raise UsageError(f"--{name} does not go with --beams, which shows replies and keeps none: leave one out")
    settings, notice = load_settings(settings_file(), options)
    if notice:
        _note(notice)
    messages = question.messages(question.prompt(), question.attachments())
    request = settings.request("ask", messages, tuple(clean_prompt(text) for text in question.stop))
    request = replace(request, sampling=replace(request.sampling, logit_bias=question.logit_bias))
    from specchat.engine.tools.beams import find_beams

    with StatusLine(sys.stderr) as line:
        found = find_beams(
            settings.engine_config(models_folder()),
            request,
            beams,
            lambda stage, text, fraction: line.show(Loading(stage, text, fraction, 0.0)),
        )
    for text in found.notices:
        _note(text)
    if options.get("thinking") is not None and not found.thinking_switch:
        _note(NO_SWITCH.format(found.target))
    if as_json:
        print(json.dumps(found.json()))
        return
    best = found.beams[0]
    text_printer().finish(Finished("ask", best.finish_reason, best.text, "", 0.0))
    print("\n".join(_lines(found)), file=sys.stderr)


def _note(text: str) -> None:
    print(f"specchat: {escape_controls(text)}", file=sys.stderr)


def _lines(found: FoundBeams) -> list[str]:
    """A line for each beam, as wide as the terminal, and one for what they took."""
    from rich.text import Text

    columns = shutil.get_terminal_size((_WIDTH, 24)).columns
    lines = ["", "beam  log p per token  tokens  end      text"]
    for number, beam in enumerate(found.beams, 1):
        text = escape_controls(" ".join(beam.text.split()))
        line = Text(f"{number:>4}  {beam.score:>15.4f}  {len(beam.token_ids):>6}  {beam.finish_reason:<7}  {text}")
        line.truncate(columns, overflow="ellipsis")
        lines.append(line.plain)
    return [*lines, "", found.summary()]
