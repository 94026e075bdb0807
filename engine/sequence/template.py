"""Rendering of chat templates, as transformers renders them."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from specchat.engine.errors import EngineError, check, errors_as, first_line
from specchat.engine.sequence import template_process
from specchat.engine.sequence.template_process import MOST_BYTES, MOST_S, compiled, environment

_SHORT = 1 << 15
"""Length of a template that is read to find out whether it is simple."""
_NAMES = 100
"""Variables of a simple template."""
_SIMPLE = {
    "Template", "Output", "TemplateData", "Const", "Name", "Getattr", "Getitem", "Slice", "If", "CondExpr", "And", "Or",
    "Not", "Compare", "Operand", "Test", "For", "Break", "Continue", "Scope", "Assign", "Add", "Concat", "Filter",
    "Call",
}  # fmt: skip
"""Jinja's nodes of simple templates."""
_CALLS = {"raise_exception", "strip", "lstrip", "rstrip", "startswith", "endswith", "upper", "lower"}
_FILTERS = {"trim", "length", "default", "string", "safe", "upper", "lower", "first", "last"}


def render(tokenizer: Any, turns: Sequence[Mapping[str, object]], **variables: object) -> str:
    """Prompt text of a conversation by the model's chat template, up to where the reply begins.

    Raises whatever the template raises.

    Args:
        tokenizer: a fast tokenizer of transformers, or a `PlainTokenizer`.
        turns: the messages, as the template reads them.
        variables: further variables of the template.
    """
    return _rendered(
        default_template(tokenizer.chat_template),
        {
            "messages": [dict(turn) for turn in turns],
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
            **tokenizer.special_tokens_map,
            **variables,
        },
    )


def default_template(chat_template: Any) -> str:
    """The default template, or else the first, if the model has several; empty if it has none."""
    if isinstance(chat_template, dict):
        chat_template = chat_template.get("default") or next(iter(chat_template.values()), None)
    return str(chat_template or "")


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
        _rendered(template, None)
    check(template.strip(), f"the chat template {path} is empty: name another one")
    return template


def _rendered(template: str, variables: Mapping[str, object] | None) -> str:
    """Render within limits of time and memory; without variables, only compile.

    A template is a program of the model. Simple ones, which cannot take long, are rendered here, others by a process.
    """
    if not _is_simple(template):
        return _process.render(template, variables)
    made, parts, size = compiled(template), [], 0
    for part in () if variables is None else made.generate(variables):
        parts.append(part)
        size += len(part)
        check(size < MOST_BYTES, _LIMIT)
    return "".join(parts)


@lru_cache(maxsize=8)
def _is_simple(template: str) -> bool:
    """Whether time and length of rendering are bounded by the length of the messages.

    So are loops over messages that are not nested, and texts that grow neither from loop to loop nor from variable to
    variable.
    """
    from jinja2 import nodes

    if len(template) > _SHORT:
        return False
    try:
        tree = environment().parse(template)
    except Exception:  # the process says what is wrong
        return False

    def allowed(node: Any, looping: bool) -> bool:
        kind = type(node).__name__
        known = kind in _SIMPLE
        if isinstance(node, nodes.Filter):
            known = node.name in _FILTERS
        elif isinstance(node, nodes.Call):
            known = getattr(node.node, "name", getattr(node.node, "attr", "")) in _CALLS
        elif isinstance(node, nodes.For):
            known = not (looping or node.recursive) and _of_messages(node.iter)
        elif isinstance(node, nodes.Assign):
            known = isinstance(node.target, nodes.Name) and node.target.name != "messages"
            known = known and not any(node.find(each) for each in (nodes.Add, nodes.Concat))
        looping = looping or isinstance(node, nodes.For)
        return known and all(allowed(child, looping) for child in node.iter_child_nodes())

    def _of_messages(node: Any) -> bool:
        inner = node.node if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice) else node
        return isinstance(inner, nodes.Name) and inner.name == "messages"

    return len(list(tree.find_all(nodes.Name))) <= _NAMES and allowed(tree, looping=False)


_LIMIT = "the model's chat template takes too much time or memory: give another one with --chat-template"


class _Process:
    """The process that renders the other templates. It starts with the first one and ends with this program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._refused: set[str] = set()
        """Templates that went beyond a limit."""
        atexit.register(self._end)

    def render(self, template: str, variables: Mapping[str, object] | None) -> str:
        """The prompt.

        Raises:
            EngineError: the template goes beyond a limit.
            ValueError: it is no template, or refuses the conversation.
        """
        question = json.dumps([template, variables, MOST_S], default=str).encode() + b"\n"
        with self._lock:
            check(template not in self._refused, _LIMIT)
            line = self._ask(question)
            answer: dict[str, str] = json.loads(line) if line.endswith(b"\n") else {}
            if not answer.keys() & {"text", "error"}:
                self._refused.add(template)
                self._end()
                raise EngineError(_LIMIT)
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["text"]

    def _ask(self, question: bytes) -> bytes:
        """The answer; incomplete if the process has ended itself."""
        if self._running is None or self._running.poll() is not None:
            # In a separate session, so that ctrl+c in the terminal does not end it.
            self._running = subprocess.Popen(
                [sys.executable, "-P", template_process.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        assert self._running.stdin is not None
        assert self._running.stdout is not None
        try:
            self._running.stdin.write(question)
            self._running.stdin.flush()
            return self._running.stdout.readline(MOST_BYTES)
        except OSError:
            return b""

    def _end(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.kill()
            running.communicate()


_process = _Process()
