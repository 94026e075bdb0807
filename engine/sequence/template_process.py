"""Jinja environment of chat templates, and a program that renders them within limits of memory, run by `template.py`.

It is a separate file that imports nothing of specchat, so that the program starts in a tenth of a second.
"""

import json
import signal
import sys
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any

MOST_BYTES = 1 << 29
"""Memory of the program."""
MOST_S = 5.0
"""Time for one prompt; templates take milliseconds."""


@lru_cache(maxsize=1)
def environment() -> Any:
    """Jinja environment for chat templates, as in transformers' `chat_template_utils`; lists may grow and shrink."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationTag(Extension):
        """`{% generation %}`, which marks the assistant's turns for training and does not change the text."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def as_json(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        layout = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
        return json.dumps(value, ensure_ascii=ensure_ascii, **layout)

    class Environment(ImmutableSandboxedEnvironment):
        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            # templates of Kimi K2 collect ids in a list of their own
            return (attr in ("append", "pop") and isinstance(obj, list)) or super().is_safe_attribute(obj, attr, value)

    made = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag])
    made.filters["tojson"] = as_json
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return made


@lru_cache(maxsize=8)
def compiled(template: str) -> Any:
    """A template, ready to be rendered."""
    return environment().from_string(template)


def _serve() -> None:
    """Answer each line of stdin with one of JSON.

    A line has a template, its variables (null: it is only compiled), and the most seconds.
    """
    import resource  # Windows has none

    with suppress(ValueError, OSError):  # less is allowed already
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    for line in sys.stdin.buffer:
        # Ends this program, whatever it computes, and whether or not the other one still runs.
        template, variables, seconds = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            made = compiled(template)
            answer = json.dumps({"text": "" if variables is None else made.render(variables)})
        except MemoryError:
            answer = json.dumps({"limit": True})
        except Exception as error:  # a template may raise anything
            answer = json.dumps({"error": str(error) or type(error).__name__})
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    _serve()
