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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specchat.engine.errors import EngineError
from specchat.engine.request import Message, Request, Sampling
from specchat.engine.round import Round
from specchat.engine.sequence.prompt import encode
from specchat.engine.tools.runner import require_least
from specchat.engine.trace import from_json

_ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
}


@dataclass(frozen=True, slots=True)
class EvaluateOptions:
    """Options of the command line.

    Raises:
        EngineError: a value is out of range.
    """

    models: Path
    target: str
    files: tuple[Path, ...]
    """Texts, as `TextFiles` reads them."""
    draft: str | None = None
    drafters: tuple[str, ...] = ()
    """Names of those to evaluate; empty for all."""
    gammas: tuple[int, ...] = (4,)
    temperature: float = 0.0
    """Temperature that the texts were sampled at; 0 for greedy."""
    limit: int = 100
    """Largest number of texts."""
    max_tokens: int = 500
    """Most tokens of a reply that are used."""
    device: str = "auto"
    dtype: str = "auto"
    quantize: str = "auto"
    context: int = 4096
    """Most tokens of a text, its prompt included."""

    def __post_init__(self) -> None:
        gamma = min(self.gammas, default=1)
        require_least(limit=(self.limit, 1), max_tokens=(self.max_tokens, 1), gamma=(gamma, 1))
        Sampling(temperature=self.temperature)  # raises EngineError if out of range
        if not self.files:
            raise EngineError("there is no text: name files of chats, traces or data sets")


@dataclass(frozen=True, slots=True)
class Text:
    """One prompt and its reply, as token ids."""

    name: str
    category: str
    prompt: tuple[int, ...]
    reply: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation of a file."""

    name: str
    category: str
    messages: tuple[Message, ...]


class TextFiles:
    """Reads texts. Entries that cannot be used are named in `problems` and skipped.

    Args:
        tokenizer: a fast tokenizer of transformers, the target's.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.problems: list[str] = []

    def read(self, files: Sequence[Path]) -> list[Text]:
        """All texts of these files, in order.

        Raises:
            EngineError: a file cannot be read.
        """
        texts: list[Text] = []
        questions: dict[object, dict[str, Any]] = {}
        for file in files:
            objects = list(self._objects(file))
            if objects and objects[0][1].get("record") == "trace":
                texts += self._trace(file, objects)
                continue
            for where, found in objects:
                if found.get("question_id") is not None and not ("turns" in found and "choices" in found):
                    known = questions.setdefault(found["question_id"], {"where": where})
                    known |= found
                    found = known
                    if not ("turns" in found and "choices" in found):
                        continue
                texts += self._talk(where, found, file.stem)
        for known in questions.values():
            if not ("turns" in known and "choices" in known):
                missing = "answers" if "turns" in known else "question"
                self.problems.append(f"{known['where']}: no file has its {missing}")
        return texts

    def _objects(self, file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each JSON object of a file, with its location."""
        try:
            content = file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            raise EngineError(f"{file} is no UTF-8 text: give JSON, or one JSON object per line") from None
        except OSError as error:
            raise EngineError(f"{file} cannot be read: {error.strerror or error}") from None
        try:
            whole = json.loads(content)
        except (ValueError, RecursionError):
            whole = None
        if isinstance(whole, list):
            numbered = [(f"{file.name}, entry {number}", entry) for number, entry in enumerate(whole, 1)]
        elif isinstance(whole, dict):
            numbered = [(file.name, whole)]
        else:
            numbered = [
                (f"{file.name}, line {number}", _parsed(line))
                for number, line in enumerate(content.split("\n"), 1)  # JSON may hold other line separators
                if line.strip()
            ]
        for where, entry in numbered:
            if isinstance(entry, dict):
                yield where, entry
            else:
                self.problems.append(f"{where}: it is no JSON object")

    def _trace(self, file: Path, objects: Sequence[tuple[str, dict[str, Any]]]) -> list[Text]:
        requests: dict[str, Request] = {}
        replies: dict[str, list[int]] = {}
        for where, found in objects[1:]:
            try:
                record = from_json(json.dumps(found))
            except ValueError as error:
                self.problems.append(f"{where}: {error}")
                continue
            if isinstance(record, Request):
                requests[record.request_id] = record
            elif isinstance(record, Round):
                replies.setdefault(record.request_id, []).extend(record.emitted)
        return [
            Text(f"{file.name}, {name}", file.stem, tuple(encode(requests[name], self._tokenizer)), tuple(reply))
            for name, reply in replies.items()
            if name in requests
        ]

    def _talk(self, where: str, found: dict[str, Any], stem: str) -> list[Text]:
        try:
            talk = _conversation(where, found, stem)
            texts = list(self._texts(talk))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            self.problems.append(
                f"{where}: it has no conversation that is known here (messages, conversations or turns)"
            )
            return []
        except EngineError as error:
            self.problems.append(f"{where}: {error}")
            return []
        if not texts:
            self.problems.append(f"{where}: it has no reply")
        return texts

    def _texts(self, talk: Talk) -> Iterator[Text]:
        for place, message in enumerate(talk.messages):
            if message.role != "assistant" or not message.content or not place:
                continue
            prompt = encode(Request("evaluate", messages=talk.messages[:place]), self._tokenizer)
            reply = self._tokenizer.encode(message.content, add_special_tokens=False)
            yield Text(talk.name, talk.category, tuple(prompt), tuple(reply))


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _conversation(where: str, found: dict[str, Any], stem: str) -> Talk:
    """The conversation in an object of any known kind."""
    category = str(found.get("category") or stem)
    if found.get("format") == "specchat-chat":
        messages = _exported(found["turns"])
    elif "messages" in found:
        messages = [Message(_ROLES[each["role"]], _text(each["content"])) for each in found["messages"]]
    elif "conversations" in found:
        messages = [Message(_ROLES[each["from"]], _text(each["value"])) for each in found["conversations"]]
    else:
        answers = found["choices"][0]["turns"]
        pairs = zip(found["turns"], answers, strict=False)
        messages = [
            Message(role, _text(text)) for pair in pairs for role, text in zip(("user", "assistant"), pair, strict=True)
        ]
    return Talk(where, category, tuple(messages))


def _exported(turns: Sequence[dict[str, Any]]) -> list[Message]:
    messages = []
    for turn in turns:
        messages.append(Message("user", _text(turn["prompt"])))
        if turn["chosen"] is not None:
            messages.append(Message("assistant", _text(turn["replies"][turn["chosen"]]["text"])))
    return messages


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def select(options: EvaluateOptions, tokenizer: Any, context: int) -> tuple[tuple[Text, ...], tuple[str, ...]]:
    """Texts of the files, up to `limit`, each cut to `max_tokens` and to the context.

    Args:
        options: of the command.
        tokenizer: a fast tokenizer of transformers, the target's.
        context: tokens of a text, its prompt included.

    Returns:
        The texts, and a sentence for each entry that could not be used.

    Raises:
        EngineError: a file cannot be read, or no text can be used.
    """
    files = TextFiles(tokenizer)
    texts = []
    for text in files.read(options.files):
        room = max(context - len(text.prompt) - 1, 0)
        texts.append(replace(text, reply=text.reply[: min(options.max_tokens, room)]))
    texts = [text for text in texts if text.reply][: options.limit]
    if not texts:
        raise EngineError("; ".join(["there is no text to evaluate on", *files.problems[:3]]))
    return tuple(texts), tuple(files.problems)
