"""How `specchat ask` shows a reply: as plain text, coloured by fate, or as one JSON object."""

import json
import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict
from itertools import groupby, repeat
from operator import itemgetter

from specchat.app.chat.thinking import Thought
from specchat.app.cli.progress import StatusLine, warn
from specchat.app.cli.terminal import unescaped
from specchat.app.sanitize import escape_controls
from specchat.app.settings.settings import AUTO, Settings
from specchat.app.sources.observed import resolve_rounds
from specchat.engine import Admitted, Baseline, Fate, Finished, FinishReason, Metrics, Ready, Record, Round, Totals

_DIM, _NOT_DIM = "\x1b[2m", "\x1b[22m"
_EMITTED = frozenset(Fate) - {Fate.REJECTED, Fate.DISCARDED}


class ThoughtLine:
    """Line with the length of a reply's thinking, on stderr if that is a terminal."""

    def __init__(self) -> None:
        self._thought = Thought()
        self._line = StatusLine()
        self._tokens = 0
        self._open = True

    def add(self, record: Round) -> None:
        """Show the length so far, or the final one once the answer has begun."""
        self._thought.add(record, self._tokens, own=True)
        self._tokens += len(record.drafted) + (record.last is not None)
        figures = self._thought.figures()
        if figures is not None and self._thought.running:
            self._line.say(figures.words(running=True))
        elif figures is not None:
            self.end()

    def end(self) -> None:
        """Print the final length, if there was any thinking."""
        figures, opened = self._thought.figures(), self._open
        if figures is None:
            return
        self._open = False
        self._line.clear()
        if opened and sys.stderr.isatty():
            print(f"{_DIM}{figures.words(running=False)}{_NOT_DIM}", file=unescaped(sys.stderr), flush=True)


class PlainPrinter:
    """Prints the text of each round, and a final newline if the reply has none.

    Args:
        thinking: whether thinking is printed before the answer; if not, `ThoughtLine` shows its length.
    """

    def __init__(self, *, thinking: bool = False) -> None:
        self._line_open = False
        self._thinking = thinking
        self._thought = ThoughtLine()
        self._inside = False
        """Whether the text printed last is thinking."""

    def add(self, event: Admitted | Round | Totals) -> None:
        """Print what the round emitted."""
        if isinstance(event, Round):
            if not self._thinking:
                self._thought.add(event)
            said = zip(event.thinking or repeat(False), self._styled(event), strict=False)
            for thinking, parts in groupby(said, key=itemgetter(0)):
                text, shown = ("".join(each) for each in zip(*(part for _, part in parts), strict=True))
                self._print(text, shown, thinking=thinking)

    def note(self, text: str) -> None:
        """Print the sentence on stderr."""
        self._end_line()
        warn(text)

    def finish(self, event: Finished) -> None:
        """Print the text that was held back, and end the line."""
        self._thought.end()
        self._print(event.tail, escape_controls(event.tail), thinking=event.thinking)
        self._end_line()
        if event.reason is FinishReason.REPEATS:
            self.note("the reply repeated itself and was ended")

    def _end_line(self) -> None:
        self._thought.end()
        if self._line_open:
            self._line_open = False
            self._write("\n")

    def _styled(self, event: Round) -> Iterable[tuple[str, str]]:
        """The text of each emitted token, plain and as printed."""
        return ((text, escape_controls(text)) for text in event.said)

    def _print(self, text: str, shown: str, *, thinking: bool) -> None:
        """Print text; thinking only if it is asked for, and an empty line after it."""
        if not text or (thinking and not self._thinking):
            return
        gap = "\n" if not self._line_open else "\n\n"
        shown = gap + shown if self._inside and not thinking else shown
        self._inside, self._line_open = thinking, not text.endswith("\n")
        self._write(shown)

    def _write(self, shown: str) -> None:
        print(shown, end="", file=unescaped(sys.stdout), flush=True)


class ColourPrinter(PlainPrinter):
    """Prints each token in the style of its fate, wrapped at words, and the figures of the reply below it.

    Args:
        thinking: whether thinking is printed before the answer.
        ready: the loaded models, for the speedup.
    """

    def __init__(self, *, thinking: bool = False, ready: Ready | None = None) -> None:
        super().__init__(thinking=thinking)
        from rich.console import COLOR_SYSTEMS, Console
        from rich.style import Style

        from specchat.app.chat.reply import Reply
        from specchat.app.cli.word_wrap import WordWrap
        from specchat.app.ui.rendering.styles import FATE_STYLES

        baseline = Baseline()
        if ready is not None:
            baseline.add(ready)
        self._reply = Reply(baseline=baseline)
        self._wrap = WordWrap(lambda: shutil.get_terminal_size().columns)
        console = Console()
        self._system = COLOR_SYSTEMS.get(console.color_system or "")
        styles = {fate: Style.parse(style) for fate, style in FATE_STYLES.items()}
        self._styles = {fate: style.without_color if console.no_color else style for fate, style in styles.items()}

    def add(self, event: Admitted | Round | Totals) -> None:
        """Print what the round emitted, and count it."""
        self._reply.add(event)
        super().add(event)

    def finish(self, event: Finished) -> None:
        """Print the text that was held back, and on stderr how the reply ended and its figures."""
        super().finish(event)
        self._reply.add(event)
        from specchat.app.chat.reply_stage import ENDINGS
        from specchat.app.ui.rendering.figures import summary

        figures = summary(self._reply.figures)
        if figures and sys.stderr.isatty():
            ending = [ENDINGS[event.reason]] if event.reason is not FinishReason.EOS else []
            line = " · ".join([*ending, *figures])
            print(f"{_DIM}{line}{_NOT_DIM}", file=unescaped(sys.stderr), flush=True)

    def _styled(self, event: Round) -> Iterable[tuple[str, str]]:
        """The text of each emitted token; of what is printed, words have its style: lines would show below spaces."""
        for token in event.tokens():
            if token.fate in _EMITTED:
                style = self._styles[token.fate]
                words = re.split(r"(\s+)", escape_controls(token.text))
                styled = (style.render(w, color_system=self._system) if w.strip() else w for w in words)
                yield token.text, "".join(styled)

    def _write(self, shown: str) -> None:
        super()._write(self._wrap.feed(shown))


class JsonPrinter:
    """Prints one JSON object when the reply has ended, with the figures of `engine.Metrics`."""

    def __init__(self, ready: Ready, settings: Settings) -> None:
        self._ready, self._settings = ready, settings
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
        used = next((each.sampling for each in events if isinstance(each, Admitted) and each.sampling), None)
        sampling = used or self._settings.sampling()
        thought, answer = ("".join(getattr(each, part) for each in rounds) for part in ("thought", "answer"))
        thought, answer = (thought + event.tail, answer) if event.thinking else (thought, answer + event.tail)
        calls = [*(call for each in rounds for call in each.calls), *event.calls]
        values = {
            "text": answer,
            "thinking": thought.strip() or None,
            **({"calls": [call._asdict() for call in calls]} if calls else {}),
            "token_ids": [] if figures.observed else [token for record in rounds for token in record.emitted],
            "prompt_tokens": figures.prompt_tokens,
            "finish_reason": event.reason,
            "rounds": figures.passes,
            "tested": None if unknown else figures.tested,
            "accepted": accepted if unknown else figures.accepted,
            "tau": figures.mean_emitted_length,
            "mean_emitted_length": figures.mean_emitted_length,  # its old name
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


Printer = PlainPrinter | JsonPrinter
"""Prints one reply from its events, which it gets in order."""


def text_printer(*, thinking: bool = False, ready: Ready | None = None) -> PlainPrinter:
    """The printer for stdout: coloured on a terminal, otherwise plain."""
    return ColourPrinter(thinking=thinking, ready=ready) if sys.stdout.isatty() else PlainPrinter(thinking=thinking)
