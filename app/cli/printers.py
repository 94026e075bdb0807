"""How `specchat ask` shows a reply: as plain text, coloured by fate, or as one JSON object."""

from __future__ import annotations

import json
import sys
from io import TextIOWrapper
from typing import Protocol, TextIO

from specchat.app.chat.thinking_text import ThinkingText
from specchat.app.chat.thought import Thought
from specchat.app.cli.thought_line import ThoughtLine
from specchat.app.sanitize import escape_controls
from specchat.app.settings.settings import AUTO, Settings
from specchat.app.sources.observed import retold
from specchat.engine import Admitted, Fate, Finished, Metrics, Ready, Record, Round, Totals

_EMITTED = frozenset(Fate) - {Fate.REJECTED, Fate.DISCARDED}


class Printer(Protocol):
    """Prints one reply from its events, which it gets in order."""

    def add(self, event: Admitted | Round | Totals) -> None:
        """One more event."""

    def note(self, text: str) -> None:
        """A sentence that is no part of the reply."""

    def finish(self, event: Finished) -> None:
        """The reply is complete."""

    def abandon(self) -> None:
        """The reply ends with an error, which the caller reports."""


class PlainPrinter:
    """The text as it comes; a line end is added where the reply has none.

    Thinking goes to `ThoughtLine`, unless `thinking` is printed as part of the reply.
    """

    def __init__(self, out: TextIO, *, thinking: bool = False) -> None:
        self._out = out
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
        print(f"specchat: {escape_controls(text)}", file=sys.stderr)

    def finish(self, event: Finished) -> None:
        """Print what was held back, and end the line."""
        self._thought.end()
        tail = self._answer.feed(event.tail) + self._answer.end()
        self._print(tail, escape_controls(tail))
        self.abandon()

    def abandon(self) -> None:
        """End the line."""
        self._thought.end()
        if self._line_open:
            self._print("\n", "\n")

    def _styled(self, event: Round) -> tuple[str, str]:
        """What the round adds to the answer, as text and as it is printed."""
        text = self._answer.feed(event.text)
        return text, escape_controls(text)

    def _print(self, text: str, shown: str) -> None:
        if text:
            self._line_open = not text.endswith("\n")
            self._out.write(shown)
            self._out.flush()


class ColourPrinter(PlainPrinter):
    """Prints each token in the style of its fate, see `app.ui.rendering.styles`, if the terminal supports it."""

    def __init__(self, out: TextIO, *, thinking: bool = False) -> None:
        super().__init__(out, thinking=thinking)
        from rich.console import COLOR_SYSTEMS, Console
        from rich.style import Style

        from specchat.app.ui.rendering.styles import FATE_STYLES

        console = Console(file=out)
        self._system = COLOR_SYSTEMS.get(console.color_system or "")
        styles = {fate: Style.parse(style) for fate, style in FATE_STYLES.items()}
        self._styles = {fate: style.without_color if console.no_color else style for fate, style in styles.items()}

    def _styled(self, event: Round) -> tuple[str, str]:
        emitted = [token for token in event.tokens() if token.fate in _EMITTED]
        parts = [(self._answer.feed(token.text), self._styles[token.fate]) for token in emitted]
        shown = (style.render(escape_controls(text), color_system=self._system) for text, style in parts)
        return "".join(text for text, _ in parts), "".join(shown)


class JsonPrinter:
    """One JSON object when the reply is complete. Its figures are those of `engine.Metrics`."""

    def __init__(self, ready: Ready, settings: Settings, out: TextIO | None = None) -> None:
        self._ready = ready
        self._settings = settings
        self._out = out or sys.stdout
        self._events: list[Record] = []

    def add(self, event: Admitted | Round | Totals) -> None:
        """Keep the event."""
        self._events.append(event)

    def note(self, text: str) -> None:
        """Print the sentence on stderr."""
        print(f"specchat: {escape_controls(text)}", file=sys.stderr)

    def finish(self, event: Finished) -> None:
        """Print the object. Everything but ASCII is escaped, so no reply can steer the terminal."""
        figures, events = Metrics(), retold(self._events)
        for each in events:
            if isinstance(each, Admitted | Round | Totals):
                figures.add(each)
        rounds = [each for each in events if isinstance(each, Round)]
        untold = figures.unknown and not figures.tested
        in_all = figures.totals.accepted if figures.totals else None
        markers = next((each.thinking for each in events if isinstance(each, Admitted)), None)
        thought, answer = Thought(markers).split("".join(record.text for record in rounds) + event.tail)
        values = {
            "text": answer,
            "thinking": thought if markers else None,
            "token_ids": [] if figures.observed else [token for record in rounds for token in record.emitted],
            "prompt_tokens": figures.prompt_tokens,
            "finish_reason": event.reason,
            "rounds": figures.passes,
            "tested": None if untold else figures.tested,
            "accepted": in_all if untold else figures.accepted,
            "mean_emitted_length": figures.mean_emitted_length,
            "tokens_per_second": figures.tokens_per_second,
            "time_to_first_token_s": figures.time_to_first_token_s,
            "seconds": figures.seconds,
            **self._drafting(figures),
            "lossless": self._settings.sampling().lossless,
            "device": self._ready.device,
            "dtype": self._ready.dtype,
        }
        self._out.write(json.dumps(values) + "\n")
        self._out.flush()

    def _drafting(self, figures: Metrics) -> dict[str, object]:
        """What drafted: of another server no more is known than its name."""
        if self._ready.observed:
            return {"observed": self._ready.observed, "tokens": figures.emitted}
        chosen = self._settings
        drafter = self._ready.drafters[0] if chosen.drafter == AUTO else chosen.drafter
        return {"drafter": drafter, "gamma": AUTO if chosen.gamma is None else chosen.gamma}

    def abandon(self) -> None:
        """Print nothing: an incomplete object cannot be used."""


def text_printer(*, thinking: bool = False) -> Printer:
    """The printer for stdout: coloured on a terminal, plain in a pipe or a file; `thinking` is printed if wanted."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal in another encoding shows what it can
    made = ColourPrinter if sys.stdout.isatty() else PlainPrinter
    return made(sys.stdout, thinking=thinking)
