"""Import of chats from specchat's own JSON and from exports of ChatGPT and Open WebUI, with all versions.

A chat that cannot be read is left out, with a sentence that says why.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from specchat.app.chat.export import FORMAT
from specchat.app.chat.turn import title_of
from specchat.app.sanitize import clean_prompt
from specchat.app.storage.attachments import FILE, PASTE, Attachment
from specchat.app.storage.imported import ImportedChat, ImportedMessage
from specchat.engine import FinishReason, Round, from_json, to_json

ROLES = ("user", "assistant")
UNKNOWN_FORMAT = "it is not in the format of specchat, ChatGPT or Open WebUI"
_END = object()


def read_chats(text: str) -> tuple[list[ImportedChat], list[str]]:
    """Read the chats of a file, and a sentence for each that is left out."""
    chats: list[ImportedChat] = []
    problems: list[str] = []
    number = 0
    for number, exported in enumerate(_objects(text), start=1):
        if exported is _END:
            problems.append(_broken(number - 1))
            break
        try:
            chats.append(_chat(exported))
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            title = exported.get("title") if isinstance(exported, dict) else None
            named = f" ({title_of(title)})" if isinstance(title, str) and title else ""
            problems.append(f"chat {number}{named} is left out: {_why(error)}")
    return chats, problems


def _broken(chats: int) -> str:
    if not chats:
        return "not an export that specchat can read: expected JSON of specchat, ChatGPT or Open WebUI"
    return f"the file is damaged or ends after chat {chats}: the rest is left out"


def _why(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]!r} is missing"
    return str(error) if type(error) is ValueError else UNKNOWN_FORMAT


def _objects(text: str) -> Iterator[Any]:
    """The chats of a list, or the only one; `_END` where the text stops being JSON."""
    decoder, place = json.JSONDecoder(), _skip_space(text, 0)
    listed = text[place : place + 1] == "["
    place = _skip_space(text, place + listed)
    while True:
        if listed and text[place : place + 1] == "]":
            return
        try:
            found, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            yield _END
            return
        yield found
        if not listed:
            return
        place = _skip_space(text, place)
        if text[place : place + 1] == ",":
            place = _skip_space(text, place + 1)


def _skip_space(text: str, place: int) -> int:
    while text[place : place + 1].isspace() or text[place : place + 1] == "\ufeff":
        place += 1
    return place


def _chat(exported: Any) -> ImportedChat:
    if exported.get("format") == FORMAT:
        return _own(exported)
    if "mapping" in exported:
        return _chatgpt(exported)
    if isinstance(exported.get("chat"), dict):
        return _open_webui(exported["chat"], exported.get("title"))
    raise ValueError(UNKNOWN_FORMAT)


def _own(exported: Mapping[str, Any]) -> ImportedChat:
    messages: list[ImportedMessage] = []
    parent: int | None = None
    for turn in exported["turns"]:
        attached = tuple(_attachment(each) for each in turn.get("attachments", ()))
        messages.append(ImportedMessage("user", _text(turn["prompt"]), parent, attachments=attached))
        prompt = parent = len(messages) - 1
        for place, reply in enumerate(turn["replies"]):
            rounds = [from_json(json.dumps(values)) for values in reply["rounds"]]
            lines = tuple(to_json(record) for record in rounds)
            text = _text(reply["text"])
            if "".join(record.text for record in rounds if isinstance(record, Round)) != text:
                lines = ()
            chosen = place == (turn["chosen"] or 0)
            reason = reply["reason"] if reply["reason"] in set(FinishReason) else FinishReason.CANCELLED.value
            messages.append(ImportedMessage("assistant", text, prompt, chosen, lines, reason))
            if chosen:
                parent = len(messages) - 1
    return _whole(exported.get("title"), messages, _text(exported.get("system") or ""))


def _attachment(exported: Mapping[str, Any]) -> Attachment:
    kind, tokens = exported["kind"], exported["tokens"]
    if kind not in (FILE, PASTE) or not isinstance(tokens, int | None):
        raise ValueError("an attachment is neither a file nor a paste")
    return Attachment(kind, _text(exported["name"]), _text(exported["text"]), tokens)


def _chatgpt(exported: Mapping[str, Any]) -> ImportedChat:
    nodes: dict[str, tuple[str | None, str, str]] = {}
    for name, node in exported["mapping"].items():
        message = node.get("message") or {}
        role = (message.get("author") or {}).get("role", "")
        parts = (message.get("content") or {}).get("parts") or []
        text = "\n\n".join(part for part in parts if isinstance(part, str) and part.strip())
        nodes[name] = node.get("parent"), role, text
    return _tree(exported.get("title"), nodes, exported.get("current_node"))


def _open_webui(chat: Mapping[str, Any], title: Any) -> ImportedChat:
    history = chat.get("history") or {}
    if history.get("messages"):
        nodes = {
            name: (message.get("parentId"), message["role"], _text(message["content"]))
            for name, message in history["messages"].items()
        }
        return _tree(chat.get("title") or title, nodes, history.get("currentId"))
    listed = chat["messages"]
    nodes = {
        str(n): (str(n - 1) if n else None, message["role"], _text(message["content"]))
        for n, message in enumerate(listed)
    }
    return _tree(chat.get("title") or title, nodes, str(len(listed) - 1))


def _tree(title: Any, nodes: Mapping[str, tuple[str | None, str, str]], current: str | None) -> ImportedChat:
    """A chat from its nodes: parent, role and text of each. Nodes of other roles are skipped.

    Several replies in a row (of a model that used tools) become one.
    """
    children: dict[str | None, list[str]] = {}
    for name, node in nodes.items():
        children.setdefault(node[0] if node[0] in nodes else None, []).append(name)
    path = set[str]()
    while current is not None and current in nodes and current not in path:
        path.add(current)
        current = nodes[current][0]
    messages: list[ImportedMessage] = []
    system = ""
    waiting: list[tuple[str, int | None]] = [(name, None) for name in reversed(children.get(None, ()))]
    seen = 0
    while waiting:
        name, parent = waiting.pop()
        seen += 1
        _, role, text = nodes[name]
        if role == "system" and not system:
            system = text
        if role in ROLES and text.strip():
            above = messages[parent] if parent is not None else None
            if role == "assistant" and above is None:
                raise ValueError("it begins with a reply")
            if role == "assistant" and above is not None and above.role == "assistant":
                text, grand = f"{above.text}\n\n{text}", above.parent
                messages[messages.index(above)] = ImportedMessage("assistant", text, grand, above.chosen, (), "eos")
            else:
                reason = "eos" if role == "assistant" else None
                messages.append(ImportedMessage(role, text, parent, name in path, (), reason))
                parent = len(messages) - 1
        waiting += [(child, parent) for child in reversed(children.get(name, ()))]
    if seen < len(nodes):
        raise ValueError("its messages follow each other in a circle")
    return _whole(title, messages, system)


def _whole(title: Any, messages: list[ImportedMessage], system: str) -> ImportedChat:
    if not messages:
        raise ValueError("it has no messages")
    named = title if isinstance(title, str) and title.strip() else title_of(messages[0].text)
    return ImportedChat(named, tuple(messages), system)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a message is no text")
    return clean_prompt(value)
