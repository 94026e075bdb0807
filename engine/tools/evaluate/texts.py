"""Texts to evaluate drafters on: prompts with the replies that were given.

They are of traces (`specchat ask --trace`), with the exact tokens, or of data sets (`data_sets`); questions and answers
of MT-bench and Spec-Bench may be in two objects with one `question_id`. Each reply of a conversation is one text; the
messages before it are its prompt.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from specchat.engine.errors import EngineError, check
from specchat.engine.models.catalog import DEFAULT_PRESET
from specchat.engine.request import Constraint, Request
from specchat.engine.round import Round
from specchat.engine.sequence.prompt import encode
from specchat.engine.settings import Sampling
from specchat.engine.tools.data_sets import MISSHAPEN, UNKNOWN, Entries, constraint_of, conversation_of
from specchat.engine.tools.report import one_line
from specchat.engine.tools.runner import ToolOptions, require_least
from specchat.engine.trace import from_json

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
    """Texts, as `data_sets.read_entries` reads them."""
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
        messages, constraint = conversation_of(entry), constraint_of(entry)
        for place, message in enumerate(messages):
            if place and message.role == "assistant" and message.content:
                follows = constraint if place == len(messages) - 1 else None
                request = Request("evaluate", messages=messages[:place], constraint=follows)
                reply = tokenizer.encode(_on_one_line(message.content, follows), add_special_tokens=False)
                texts.append(Text(where, category, tuple(encode(request, tokenizer)), tuple(reply), request=request))
        check(texts, "it has no reply")
    except EngineError as error:
        problems.append(f"{where}: {error}")
        return []
    except MISSHAPEN:
        problems.append(f"{where}: {UNKNOWN}")
        return []
    return texts


def _on_one_line(reply: str, constraint: Constraint | None) -> str:
    """A reply that follows a JSON schema, with the white space that replies have here."""
    with suppress(ValueError, RecursionError):
        return reply if constraint is None else json.dumps(json.loads(reply), ensure_ascii=False)
    return reply


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


def interval(texts: Sequence[_Of], figure: Callable[[Sequence[_Of]], float]) -> Interval:
    """The interval of a figure of texts; the same texts give the same one."""
    dice = random.Random(0)
    values = sorted(figure(dice.choices(texts, k=len(texts))) for _ in range(_RESAMPLES))
    return Interval(values[int(_OUTSIDE * _RESAMPLES)], values[int((1 - _OUTSIDE) * _RESAMPLES) - 1])


def with_interval(texts: int, figure: Iterable[float | None], form: str = "{:.2f}") -> str:
    """A figure with its interval, low and high, of `texts` texts; one text has none. None is infinite."""
    value, low, high = ("∞" if each is None else form.format(each) for each in figure)
    return f"{value} ({low}–{high})" if texts > 1 else f"{value} (–)"


def by_category(items: Sequence[_Of], category: Callable[[_Of], str]) -> Iterator[tuple[str, Sequence[_Of]]]:
    """All items, under an empty name; then each category, if there are several."""
    yield "", items
    names = list(dict.fromkeys(map(category, items)))
    for name in names if len(names) > 1 else ():
        yield name, [each for each in items if category(each) == name]
