"""Rendering of chat templates, as transformers renders them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from specchat.engine.errors import EngineError, check, errors_as, first_line


def render(tokenizer: Any, turns: Sequence[Mapping[str, object]], **variables: object) -> str:
    """Prompt text of a conversation by the model's chat template, up to where the reply begins.

    Raises whatever the template raises.

    Args:
        tokenizer: a fast tokenizer of transformers, or a `PlainTokenizer`.
        turns: the messages, as the template reads them.
        variables: further variables of the template.
    """
    return str(
        _compiled(default_template(tokenizer.chat_template)).render(
            {
                "messages": [dict(turn) for turn in turns],
                "tools": None,
                "documents": None,
                "add_generation_prompt": True,
                **tokenizer.special_tokens_map,
                **variables,
            }
        )
    )


def default_template(chat_template: Any) -> str:
    """The default template, if the model has several; empty if it has none."""
    return str((chat_template.get("default") if isinstance(chat_template, dict) else chat_template) or "")


def read_template(path: Path) -> str:
    """A chat template from a file.

    Raises:
        EngineError: it cannot be read, or is no template.
    """
    try:
        template = path.expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise EngineError(f"the chat template {path} cannot be read ({reason}): name a text file") from None
    with errors_as(lambda error: f"{path} is no chat template ({first_line(error)}): correct it, or name another one"):
        _compiled(template)
    check(template.strip(), f"the chat template {path} is empty: name another one")
    return template


@lru_cache(maxsize=8)
def _compiled(template: str) -> Any:
    return _environment().from_string(template)


@lru_cache(maxsize=1)
def _environment() -> Any:
    """Jinja environment for chat templates, as in transformers' `chat_template_utils`."""
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

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag]
    )
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment
