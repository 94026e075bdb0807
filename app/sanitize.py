"""Text on its way to the terminal and to the model: nothing that steers a terminal passes.

A model can emit escape sequences, and so can a file that is piped into a prompt. `visible` turns everything that a
terminal would act on into a sign that can be seen; `clean_prompt` takes it out of what a person typed or piped in.
"""

from __future__ import annotations

import re

_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f"
_LINE_ENDS = "\u2028\u2029"
_DIRECTIONS = "\u202a-\u202e\u2066-\u2069"  # embeddings, overrides and isolates: they reorder what follows on the line
_SURROGATES = "\ud800-\udfff"

_ACTING = re.compile(f"[{_CONTROLS}{_LINE_ENDS}{_DIRECTIONS}{_SURROGATES}]")
_DROPPED = re.compile(f"[{_CONTROLS}]")
_HALVES = re.compile(f"[{_SURROGATES}]")

_PICTURES = {chr(code): chr(0x2400 + code) for code in range(0x20)} | {
    "\x7f": "\u2421",
    "\u2028": "\u2424",
    "\u2029": "\u2424",
}
_NO_PICTURE = "\ufffd"


def visible(text: str) -> str:
    """The text with every character a terminal acts on replaced by one visible sign; line feeds and tabs stay.

    Control characters become their pictures (ESC is ␛, CR is ␍), the rest (C1, direction marks, half characters) the
    replacement character. Lengths do not change, so positions in the text stay valid.
    """
    return _ACTING.sub(lambda match: _PICTURES.get(match[0], _NO_PICTURE), text)


def clean_prompt(text: str) -> str:
    """What a person typed or piped in, fit for a tokenizer: line ends are \\n, control characters are gone.

    Half characters (lone surrogates, what Python makes of broken UTF-8) become the replacement character.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _HALVES.sub(_NO_PICTURE, _DROPPED.sub("", text))
