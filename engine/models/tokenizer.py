"""A tokenizer as the engine uses one, on the `tokenizers` library alone: transformers takes half a second to import."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from specchat.engine.errors import EngineError

FILE = "tokenizer.json"


class PlainTokenizer:
    """What transformers' fast tokenizer of the same model does, with the same names, as far as the engine asks for it.

    Args:
        backend: the tokenizer itself.
        facts: what `tokenizer_facts` says of the model's tokenizer.
    """

    def __init__(self, backend: Tokenizer, facts: Mapping[str, Any]) -> None:
        self.backend_tokenizer = backend
        self.chat_template: str | None = facts["chat_template"]
        self.all_special_ids: list[int] = facts["special_ids"]
        self._named: dict[str, str] = facts["special_tokens"]

    @classmethod
    def open(cls, folder: Path, facts: Mapping[str, Any]) -> PlainTokenizer:
        """Read the tokenizer of a packed model.

        Raises:
            EngineError: it cannot be read.
        """
        path = folder / FILE
        try:
            return cls(Tokenizer.from_file(str(path)), facts)
        except Exception as error:  # the library raises plain Exceptions
            raise EngineError(f"{path} cannot be read ({error}): delete {folder} and start again") from error

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        ids: list[int] = self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(
        self, ids: Sequence[int], *, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = False
    ) -> str:
        """Text of token ids, spaces as they are."""
        assert not clean_up_tokenization_spaces
        return str(self.backend_tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def convert_ids_to_tokens(self, token: int) -> str | None:
        """A token's name in the vocabulary."""
        return self.backend_tokenizer.id_to_token(token)

    def get_vocab(self) -> dict[str, int]:
        """Every token with its id."""
        return dict(self.backend_tokenizer.get_vocab(with_added_tokens=True))

    def apply_chat_template(
        self,
        turns: Sequence[Mapping[str, str]],
        *,
        add_generation_prompt: bool = True,
        tokenize: bool = False,
        **variables: object,
    ) -> str:
        """The text of a conversation, as the model's chat template writes it with these variables of its own.

        Raises whatever the template does.
        """
        assert not tokenize
        return str(
            self._template.render(
                messages=[dict(turn) for turn in turns],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._named,
                **variables,
            )
        )

    @cached_property
    def _template(self) -> Any:
        return _environment().from_string(self.chat_template or "")


def tokenizer_facts(tokenizer: Any) -> dict[str, Any]:
    """What a tokenizer of transformers knows beside its `backend_tokenizer`, as plain values."""
    template = tokenizer.chat_template
    return {
        "chat_template": template.get("default") if isinstance(template, dict) else template,
        "special_ids": list(tokenizer.all_special_ids),
        "special_tokens": dict(tokenizer.special_tokens_map),
    }


def _environment() -> Any:
    """Jinja as chat templates expect it (transformers, `chat_template_utils`): no escaping, blocks take their line."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def as_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _generation_tag()]
    )
    environment.filters["tojson"] = as_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment


def _generation_tag() -> Any:
    """`{% generation %}`, which marks the assistant's turns for training and changes nothing in the text."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class GenerationTag(Extension):
        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    return GenerationTag
