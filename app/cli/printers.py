"""How `specchat ask` shows a reply: as plain text, coloured by fate, or as one JSON object."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from specchat.app.chat.thinking import ThinkingText, Thought
from specchat.app.cli.progress import StatusLine, warn
from specchat.app.cli.terminal import unescaped
from specchat.app.sanitize import escape_controls
from specchat.app.settings.settings import AUTO, Settings
from specchat.app.sources.observed import resolve_rounds
from specchat.engine import Admitted, Fate, Finished, FinishReason, Metrics, Ready, Record, Round, Thinking, Totals

_DIM, _NOT_DIM = "\x1b[2m", "\x1b[22m"
_EMITTED = frozenset(Fate) - {Fate.REJECTED, Fate.DISCARDED}


class ThoughtLine:
    """On a terminal, a line on stderr with the length of a reply's thinking.

    Args:
        markers: what encloses the thinking; None for a model that does not think.
    """

    def __init__(self, markers: Thinking | None) -> None:
        self._thought = Thought(markers)
        self._line = StatusLine()
        self._tokens = 0
        self._open = markers is not None

    def add(self, record: Round) -> None:
        """Show the length so far, or the final one once the answer has begun."""
        if not self._open:
            return
        self._thought.add(record, self._tokens, own=True)
        self._tokens += len(record.drafted) + (record.last is not None)
        figures = self._thought.figures()
        if self._thought.running and figures is not None:
            self._line.say(figures.words(going_on=True))
        elif figures is not None:
            self.end()

    def end(self) -> None:
        """Print the final length, if there was any thinking."""
        figures, opened = self._thought.figures(), self._open
        self._open = False
        self._line.clear()
        if opened and figures is not None and sys.stderr.isatty():
            print(f"{_DIM}{figures.words(going_on=False)}{_NOT_DIM}", file=unescaped(sys.stderr), flush=True)


class PlainPrinter:
    """Prints the text of each round, and a final newline if the reply has none.

    Args:
        thinking: whether thinking is printed as part of the reply; if not, `ThoughtLine` shows its length.
    """

    def __init__(self, *, thinking: bool = False) -> None:
        self._line_open = False
        self._thinking = thinking
        self._answer = ThinkingText(None)
        self._thought = ThoughtLine(None)

    def add(self, event: Admitted | Round | Totals) -> None:
        """Print what the round emitted."""
        if isinstance(event, Admitted) and not self._thinking:
            self._answer, self._thought = ThinkingText(event.thinking), ThoughtLine(event.thinking)
        elif isinstance(event, Round):
            self._thought.add(event)
            self._print(*self._styled(event))

    def note(self, text: str) -> None:
        """Print the sentence on stderr."""
        self.abandon()
        warn(text)

    def finish(self, event: Finished) -> None:
        """Print the text that was held back, and end the line."""
        self._thought.end()
        tail = self._answer.feed(event.tail) + self._answer.end()
        self._print(tail, escape_controls(tail))
        self.abandon()
        if event.reason is FinishReason.REPEATS:
            self.note("the reply repeated itself and was ended")

    def abandon(self) -> None:
        """End the line."""
        self._thought.end()
        if self._line_open:
            self._print("\n", "\n")

    def _styled(self, event: Round) -> tuple[str, str]:
        """The text that the round adds to the answer, plain and as printed."""
        text = self._answer.feed(event.text)
        return text, escape_controls(text)

    def _print(self, text: str, shown: str) -> None:
        if text:
            self._line_open = not text.endswith("\n")
            print(shown, end="", file=unescaped(sys.stdout), flush=True)


class ColourPrinter(PlainPrinter):
    """Prints each token in the style of its fate, see `app.ui.rendering.styles`, if the terminal supports it."""

    def __init__(self, *, thinking: bool = False) -> None:
        super().__init__(thinking=thinking)
        from rich.console import COLOR_SYSTEMS, Console
        from rich.style import Style

        from specchat.app.ui.rendering.styles import FATE_STYLES

        console = Console()
        self._system = COLOR_SYSTEMS.get(console.color_system or "")
        styles = {fate: Style.parse(style) for fate, style in FATE_STYLES.items()}
        self._styles = {fate: style.without_color if console.no_color else style for fate, style in styles.items()}

    def _styled(self, event: Round) -> tuple[str, str]:
        emitted = [token for token in event.tokens() if token.fate in _EMITTED]
        parts = [(self._answer.feed(token.text), self._styles[token.fate]) for token in emitted]
        shown = (style.render(escape_controls(text), color_system=self._system) for text, style in parts)
        return "".join(text for text, _ in parts), "".join(shown)


class JsonPrinter:
    """Prints one JSON object when the reply is complete, with the figures of `engine.Metrics`."""

    def __init__(self, ready: Ready, settings: Settings) -> None:
        self._ready = ready
        self._settings = settings
        self._events: list[Record] = []

    def add(self, event: Admitted | Round | Totals) -> None:
        """Keep the event."""
        self._events.append(event)

    def note(self, text: str) -> None:
        """Print the sentence on stderr."""
        warn(text)

    def finish(self, event: Finished) -> None:
        """Print the object. Non-ASCII characters are escaped, so a reply cannot control the terminal."""
        figures, events = Metrics(), resolve_rounds(self._events)
        for each in events:
            if isinstance(each, Admitted | Round | Totals):
                figures.add(each)
        rounds = [each for each in events if isinstance(each, Round)]
        unknown = figures.unknown and not figures.tested
        accepted = figures.totals.accepted if figures.totals else None
        markers = next((each.thinking for each in events if isinstance(each, Admitted)), None)
        used = next((each.sampling for each in events if isinstance(each, Admitted) and each.sampling), None)
        sampling = used or self._settings.sampling()
        thought, answer = Thought(markers).split("".join(record.text for record in rounds) + event.tail)
        values = {
            "text": answer,
            "thinking": thought if markers else None,
            "token_ids": [] if figures.observed else [token for record in rounds for token in record.emitted],
            "prompt_tokens": figures.prompt_tokens,
            "finish_reason": event.reason,
            "rounds": figures.passes,
            "tested": None if unknown else figures.tested,
            "accepted": accepted if unknown else figures.accepted,
            "mean_emitted_length": figures.mean_emitted_length,
            "tokens_per_second": figures.tokens_per_second,
            "time_to_first_token_s": figures.time_to_first_token_s,
            "seconds": figures.seconds_in_all,
            **self._drafting(figures),
            "sampling": asdict(sampling),
            "lossless": sampling.lossless,
            "device": self._ready.device,
            "dtype": self._ready.dtype,
        }
        print(json.dumps(values), flush=True)

    def _drafting(self, figures: Metrics) -> dict[str, object]:
        """Drafter and γ, or for other servers the server's name."""
        if self._ready.observed:
            return {"observed": self._ready.observed, "tokens": figures.emitted}
        chosen = self._settings
        drafter = self._ready.drafters[0] if chosen.drafter == AUTO else chosen.drafter
        return {"drafter": drafter, "gamma": AUTO if chosen.gamma is None else chosen.gamma}

    def abandon(self) -> None:
        """Print nothing: an incomplete object cannot be used."""


Printer = PlainPrinter | JsonPrinter
"""Prints one reply from its events, which it gets in order."""


def text_printer(*, thinking: bool = False) -> PlainPrinter:
    """The printer for stdout: coloured on a terminal, otherwise plain."""
    printer = ColourPrinter if sys.stdout.isatty() else PlainPrinter
    return printer(thinking=thinking)
