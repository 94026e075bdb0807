"""Texts to evaluate drafters on: prompts with the replies that were given, from files of several kinds.

A file is JSON or one JSON object per line. Its keys tell its kind:

- a trace of `specchat ask --trace`: the exact tokens of its replies;
- a chat that `specchat export` wrote as JSON;
- `messages` with `role` and `content`, as in OpenAI's API; `conversations` with `from` and `value`, as in ShareGPT;
- `turns` and `choices`, as in MT-bench and Spec-Bench: questions and answers, in one object or in two with one
  `question_id`.

Each reply of a conversation is one text; the messages before it are its prompt.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from specchat.engine.errors import EngineError, check
from specchat.engine.models.catalog import DEFAULT_PRESET
from specchat.engine.request import Message, Request
from specchat.engine.round import Round
from specchat.engine.sequence.prompt import encode
from specchat.engine.settings import Sampling
from specchat.engine.tools.report import one_line
from specchat.engine.tools.runner import ToolOptions, require_least
from specchat.engine.trace import from_json

_ROLES = dict.fromkeys(("user", "human"), "user") | dict.fromkeys(("assistant", "gpt", "model"), "assistant")
_ROLES["system"] = "system"
_MT_BENCH = {"turns", "choices"}
"""Keys of questions with their answers."""
_RESAMPLES = 1000
_OUTSIDE = 0.025
"""Share of the resamples on each side of an interval."""
_BEFORE = 8
"""Tokens shown before a token."""
_Of = TypeVar("_Of")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(ToolOptions):
    """Options of the command line.

    Raises:
        EngineError: a value is out of range.
    """

    target: str = DEFAULT_PRESET
    files: tuple[Path, ...]
    """Texts, as `read_entries` reads them."""
    drafters: tuple[str, ...] = ()
    """Names of drafters to evaluate; empty for all."""
    gammas: tuple[int, ...] = (4,)
    temperature: float = 0.0
    """Temperature that the texts were sampled at; 0 for greedy."""
    limit: int = 100
    """Largest number of texts."""
    max_tokens: int = 500
    """Most tokens of a reply that are used."""
    context: int = 4096
    """Most tokens of a text, its prompt included."""

    def __post_init__(self) -> None:
        gamma = min(self.gammas, default=1)
        require_least(limit=(self.limit, 1), max_tokens=(self.max_tokens, 1), gamma=(gamma, 1))
        Sampling(temperature=self.temperature)  # raises EngineError if out of range
        check(self.files, "there is no text: name files of chats, traces or data sets")


@dataclass(frozen=True, slots=True)
class Text:
    """One prompt and its reply, as token ids."""

    name: str
    category: str
    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    without: tuple[int, ...] = ()
    """`Request.not_drafted_from`."""
    request: Request | None = None
    """The request that it replies to, where that is known: it says what the reply has to follow."""

    def json(self) -> dict[str, Any]:
        """Fields of the JSON reports."""
        about = {"name": self.name, "category": self.category}
        return {**about, "prompt_tokens": len(self.prompt), "tokens": self.reply}

    def before(self, place: int, name: Callable[[int], str]) -> str:
        """The tokens before one of the reply, on one line."""
        return one_line("".join(map(name, self.reply[max(place - _BEFORE, 0) : place])))


Entries = Sequence[tuple[Path, list[tuple[str, object]]]]
"""Files, each with its entries and their locations."""


def read_entries(files: Sequence[Path]) -> Entries:
    """The entries of files of any known kind.

    Raises:
        EngineError: a file cannot be read.
    """
    return [(file, _entries(file)) for file in files]


def texts_of(read: Entries, tokenizer: Any) -> tuple[list[Text], list[str]]:
    """All texts of files, in order, and a sentence for each entry that could not be used.

    Args:
        read: what the files hold.
        tokenizer: the target's.
    """
    texts: list[Text] = []
    problems: list[str] = []
    questions: dict[str, dict[str, Any]] = {}
    for file, entries in read:
        problems += [f"{where}: it is not a JSON object" for where, entry in entries if not isinstance(entry, dict)]
        objects = [(where, entry) for where, entry in entries if isinstance(entry, dict)]
        if objects and objects[0][1].get("record") == "trace":
            texts += _replies_of_trace(file, objects[1:], tokenizer, problems)
            continue
        for where, entry in objects:
            key = entry.get("question_id")
            if key is not None and not entry.keys() >= _MT_BENCH:
                known = questions.get(json.dumps(key), {})
                entry = questions[json.dumps(key)] = {"where": where, **known, **entry}
                if not entry.keys() >= _MT_BENCH:
                    continue
            texts += _replies(where, entry, file.stem, tokenizer, problems)
    for known in questions.values():
        if not known.keys() >= _MT_BENCH:
            missing = "answers" if "turns" in known else "question"
            problems.append(f"{known['where']}: no file has its {missing}")
    return texts, problems


def _entries(file: Path) -> list[tuple[str, object]]:
    """Each entry of a file, with its location; None for a line that is not JSON."""
    try:
        content = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise EngineError(f"{file} is not UTF-8 text: give JSON, or one JSON object per line") from None
    except OSError as error:
        raise EngineError(f"{file} cannot be read: {error.strerror or error}") from None
    whole = _parsed(content)
    if isinstance(whole, list):
        return [(f"{file.name}, entry {number}", entry) for number, entry in enumerate(whole, 1)]
    if isinstance(whole, dict):
        return [(file.name, whole)]
    lines = enumerate(content.split("\n"), 1)  # JSON may hold other line separators
    return [(f"{file.name}, line {number}", _parsed(line)) for number, line in lines if line.strip()]


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _replies_of_trace(
    file: Path, objects: Sequence[tuple[str, dict[str, Any]]], tokenizer: Any, problems: list[str]
) -> list[Text]:
    requests: dict[str, Request] = {}
    replies: dict[str, list[int]] = {}
    for where, entry in objects:
        try:
            record = from_json(json.dumps(entry))
        except ValueError as error:
            problems.append(f"{where}: {error}")
            continue
        if isinstance(record, Request):
            requests[record.request_id] = record
        elif isinstance(record, Round):
            replies.setdefault(record.request_id, []).extend(record.emitted)
    texts = []
    for name, reply in replies.items():
        if name in requests:
            where = f"{file.name}, {name}"
            try:
                prompt = encode(requests[name], tokenizer)
                request = None if requests[name].reply_ids or requests[name].reply_text else requests[name]
                texts.append(Text(where, file.stem, tuple(prompt), tuple(reply), request=request))
            except EngineError as error:
                problems.append(f"{where}: {error}")
    return texts


def _replies(where: str, entry: dict[str, Any], stem: str, tokenizer: Any, problems: list[str]) -> list[Text]:
    """A text for each reply of a conversation."""
    category = str(entry.get("category") or stem)
    texts = []
    try:
        messages = _messages(entry)
        for place, message in enumerate(messages):
            if place and message.role == "assistant" and message.content:
                prompt = encode(Request("evaluate", messages=messages[:place]), tokenizer)
                reply = tokenizer.encode(message.content, add_special_tokens=False)
                texts.append(Text(where, category, tuple(prompt), tuple(reply)))
        check(texts, "it has no reply")
    except EngineError as error:
        problems.append(f"{where}: {error}")
        return []
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        problems.append(f"{where}: it has no conversation that is known here (messages, conversations or turns)")
        return []
    return texts


def _messages(entry: dict[str, Any]) -> tuple[Message, ...]:
    """The conversation in an object of any known kind."""
    said: list[tuple[str, Any]] = []
    if entry.get("format") == "specchat-chat":
        for turn in entry["turns"]:
            said.append(("user", turn["prompt"]))
            if turn["chosen"] is not None:
                said.append(("assistant", turn["replies"][turn["chosen"]]["text"]))
    elif "messages" in entry:
        said = [(each["role"], each["content"]) for each in entry["messages"]]
    elif "conversations" in entry:
        said = [(each["from"], each["value"]) for each in entry["conversations"]]
    else:
        for question, answer in zip(entry["turns"], entry["choices"][0]["turns"], strict=False):
            said += [("user", question), ("assistant", answer)]
    if not all(isinstance(text, str) for _, text in said):
        raise TypeError
    return tuple(Message(_ROLES[role], text) for role, text in said)


def select(options: EvaluateOptions, read: Entries, tokenizer: Any, context: int) -> tuple[list[Text], list[str]]:
    """Texts of files, up to `limit`, each cut to `max_tokens` and to the context.

    Args:
        options: of the command.
        read: what the files hold.
        tokenizer: the target's.
        context: tokens of a text, its prompt included.

    Returns:
        The texts, and a sentence for each entry that could not be used.

    Raises:
        EngineError: no text can be used.
    """
    found, problems = texts_of(read, tokenizer)
    rooms = [min(options.max_tokens, max(context - len(text.prompt) - 1, 0)) for text in found]
    texts = [replace(text, reply=text.reply[:room]) for text, room in zip(found, rooms, strict=True)]
    texts = [text for text in texts if text.reply][: options.limit]
    check(texts, "; ".join(["there is no text to evaluate on", *problems[:3]]))
    return texts, problems


class Interval(NamedTuple):
    """A figure's 95 % interval: percentiles of its bootstrap (Efron and Tibshirani 1993, section 13.3)."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:.2f}–{self.high:.2f}"


def interval(texts: Sequence[_Of], figure: Callable[[Sequence[_Of]], float]) -> Interval:
    """The interval of a figure of texts; the same texts give the same one."""
    dice = random.Random(0)
    values = sorted(figure(dice.choices(texts, k=len(texts))) for _ in range(_RESAMPLES))
    return Interval(values[int(_OUTSIDE * _RESAMPLES)], values[int((1 - _OUTSIDE) * _RESAMPLES) - 1])


def by_category(items: Sequence[_Of], category: Callable[[_Of], str]) -> Iterator[tuple[str, Sequence[_Of]]]:
    """All items, under an empty name; then each category, if there are several."""
    yield "", items
    names = list(dict.fromkeys(map(category, items)))
    for name in names if len(names) > 1 else ():
        yield name, [each for each in items if category(each) == name]
