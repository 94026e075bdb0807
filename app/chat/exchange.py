"""Export of a chat as Markdown or as JSON with every round, and import from that JSON, of ChatGPT and Open WebUI.

Import takes all versions. A chat that cannot be read is left out, with a sentence that says why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from specchat.app.chat.attachments import as_block
from specchat.app.chat.conversation import Conversation, Turn
from specchat.app.chat.reply import ENDINGS, Reply, Stage
from specchat.app.chat.titles import title_of
from specchat.app.sanitize import clean_prompt, escape_json, escape_steering
from specchat.app.settings.controls import sampling_text
from specchat.app.storage.attachments import FILE, PASTE, Attachment
from specchat.app.storage.store import Chat, StoredMessage
from specchat.engine import Admitted, FinishReason, Measured, Round, from_json, marks_of, to_json

FORMATS = ("md", "json", "svg", "html")
"""Markdown, JSON, a picture, a web page that replays the chat."""
FORMAT, VERSION = "specchat-chat", 1
ROLES = ("user", "assistant")
UNKNOWN_FORMAT = "it is not in the format of specchat, ChatGPT or Open WebUI"
ImportedChat = tuple[Chat, list[StoredMessage]]
"""A chat and its messages, as `Store.import_chats` takes them."""
_UNFIT = re.compile(r"[^\w]+")
_END = object()
_TIMES = ("updated_at", "update_time", "created_at", "create_time")
"""Keys of the last change of a chat, in seconds since 1970, the most exact first."""
_LATEST = 1e11
_OPEN_WEBUI = {"repeat_penalty": "repetition_penalty"} | {
    name: name for name in ("temperature", "top_k", "top_p", "min_p", "seed", "presence_penalty", "frequency_penalty")
}
"""Our names of the sampling settings of Open WebUI."""


def as_markdown(conversation: Conversation, model: str, *, thinking: bool = False) -> str:
    """Prompts and chosen replies; with `thinking`, that is quoted before each reply."""
    parts = [f"# {' '.join(conversation.title.split())}"]
    if conversation.system:
        parts += ["## System", conversation.system.strip()]
    for turn in conversation.turns:
        parts += ["## You", turn.prompt.strip(), *map(as_block, turn.attachments)]
        if turn.reply is not None:
            parts += [
                f"## {turn.reply.model or model or 'Model'}",
                *_markdown_reply(turn, turn.reply, thinking=thinking),
            ]
    return escape_steering("\n\n".join(part for part in parts if part)) + "\n"


def as_json(conversation: Conversation, model: str) -> str:
    """One object: every turn with all its replies, and each reply with its rounds as in a trace."""
    head = {"format": FORMAT, "version": VERSION, "title": conversation.title, "model": model or None}
    exported = {
        **head,
        "updated_at": conversation.chat.updated_at if conversation.chat else None,
        "system": conversation.system or None,
        "turns": [
            {
                "prompt": turn.prompt,
                "chosen": turn.place - 1 if turn.reply is not None else None,
                "replies": [_reply(reply) for reply in turn.replies],
                "version": turn.version,
                "versions": [other.prompt for other in turn.versions],
                **({"attachments": [_exported(one) for one in turn.attachments]} if turn.attachments else {}),
            }
            for turn in conversation.turns
        ],
    }
    return escape_json(json.dumps(exported, ensure_ascii=False, indent=1)) + "\n"


def file_stem(title: str) -> str:
    """A file name for a chat: its first words in lower case, joined by hyphens."""
    words = _UNFIT.sub("-", title.lower()).strip("-")
    return words[:40].rstrip("-") or "chat"


def _markdown_reply(turn: Turn, reply: Reply, *, thinking: bool) -> list[str]:
    notes = []
    quoted = "\n".join(f"> {line}".rstrip() for line in reply.thinking.splitlines()) if thinking else ""
    if len(turn.replies) > 1:
        notes.append(f"reply {turn.place} of {len(turn.replies)}")
    if reply.sampling is not None:
        notes.append(sampling_text(reply.sampling))
    if reply.running:
        notes.append("still being written")
    elif reply.stage is Stage.INTERRUPTED:
        notes.append("interrupted")
    elif reply.reason not in (FinishReason.EOS, FinishReason.STOP, None):
        notes.append(reply.message or ENDINGS[reply.reason])
    return [quoted, reply.text.strip(), f"*{' · '.join(notes)}*" if notes else ""]


def _exported(attachment: Attachment) -> dict[str, Any]:
    return {name: getattr(attachment, name) for name in ("kind", "name", "text", "tokens")}


def _reply(reply: Reply) -> dict[str, Any]:
    s, gain = reply.metrics, reply.figures.gain
    return {
        "text": reply.text,
        "thinking": reply.thinking,
        "stage": reply.stage.value,
        "reason": reply.reason.value if reply.reason else None,
        "message": reply.message,
        **({"model": reply.model} if reply.model else {}),
        **({"sampling": asdict(reply.sampling)} if reply.sampling else {}),
        **({"left_out": list(reply.left_out)} if reply.left_out else {}),
        "figures": {"rounds": s.rounds, "tokens": s.emitted, "tau": s.mean_emitted_length}
        | {
            name: getattr(s, name)
            for name in ("tested", "accepted", "rejected", "discarded", "acceptance", "tokens_per_second")
        }
        | {f"{name}_speedup": getattr(gain, name, None) for name in ("predicted", "measured")},
        **({"measured": json.loads(to_json(reply.measured))} if reply.measured else {}),
        "rounds": [json.loads(to_json(record)) for record in reply.rounds],
    }


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
        chat, messages = _own(exported)
    elif "mapping" in exported:
        chat, messages = _chatgpt(exported)
    elif isinstance(exported.get("chat"), dict):
        chat, messages = _open_webui(exported["chat"], exported.get("title"))
    else:
        raise ValueError(UNKNOWN_FORMAT)
    times = (exported.get(name) for name in _TIMES)
    known = (at for at in times if isinstance(at, int | float) and 0 < at < _LATEST)
    return replace(chat, updated_at=next(known, 0.0)), messages


def _own(exported: Mapping[str, Any]) -> ImportedChat:
    messages: list[StoredMessage] = []
    parent: int | None = None
    for turn in exported["turns"]:
        attached = tuple(_attachment(each) for each in turn.get("attachments", ()))
        prompt = len(messages)
        messages.append(StoredMessage(prompt, "user", _text(turn["prompt"]), parent=parent, attachments=attached))
        parent = prompt
        for place, reply in enumerate(turn["replies"]):
            rounds = [from_json(json.dumps(values)) for values in reply["rounds"]]
            text, thinking = _text(reply["text"]), None
            known = {name: reply[name] for name in ("sampling", "left_out") if reply.get(name)}
            if "thinking" in reply:
                thinking = _text(reply["thinking"])
            elif (marks := marks_of(text)) is not None:  # an earlier version left the thinking in the text
                known["thinking"] = list(marks)
            tokens = next((record.position for record in rounds if isinstance(record, Round)), 0)
            lines = (*_admitted(known, tokens), *map(to_json, rounds))
            if "measured" in reply and isinstance(final := from_json(json.dumps(reply["measured"])), Measured):
                lines = (*lines, to_json(final))
            chosen = place == (turn["chosen"] or 0)
            reason = reply["reason"] if reply["reason"] in set(FinishReason) else FinishReason.CANCELLED.value
            if chosen:
                parent = len(messages)
            model = _text(reply.get("model", ""))
            told = reason, prompt, chosen, model, lines, (), thinking
            messages.append(StoredMessage(len(messages), "assistant", text, *told))
    return _whole(exported.get("title"), messages, _text(exported.get("system") or ""))


def _admitted(known: Mapping[str, Any], tokens: int = 0) -> Iterator[str]:
    """The trace line with what is known of a reply's request; none without anything.

    Args:
        known: fields of `Admitted`.
        tokens: of its prompt.
    """
    if known:
        values = json.loads(to_json(Admitted("", tokens, 0, 0.0, 0.0)))
        yield to_json(from_json(json.dumps(values | known)))


def _attachment(exported: Mapping[str, Any]) -> Attachment:
    kind, tokens = exported["kind"], exported["tokens"]
    if kind not in (FILE, PASTE) or not isinstance(tokens, int | None):
        raise ValueError("an attachment is neither a file nor a paste")
    if not 0 <= (tokens or 0) < 1 << 63:
        raise ValueError("the number of tokens of an attachment is out of range")
    return Attachment(kind, _text(exported["name"]), _text(exported["text"]), tokens)


class _Node(NamedTuple):
    """A message of another program's tree."""

    parent: str | None
    role: str
    text: str
    model: str = ""
    """Of a reply; empty if the file does not state it."""


def _chatgpt(exported: Mapping[str, Any]) -> ImportedChat:
    nodes = {
        name: _chatgpt_node(node.get("parent"), node.get("message") or {}) for name, node in exported["mapping"].items()
    }
    return _tree(exported.get("title"), nodes, exported.get("current_node"))


def _chatgpt_node(parent: str | None, message: Mapping[str, Any]) -> _Node:
    content = message.get("content") or {}
    parts, role = content.get("parts") or [], (message.get("author") or {}).get("role", "")
    if content.get("content_type") == "user_editable_context":  # the user's custom instructions
        parts, role = [content.get("user_profile"), content.get("user_instructions")], "system"
    text = "\n\n".join(part for part in parts if isinstance(part, str) and part.strip())
    return _Node(parent, role, text, _text((message.get("metadata") or {}).get("model_slug") or ""))


def _open_webui(chat: Mapping[str, Any], title: Any) -> ImportedChat:
    history, params = chat.get("history") or {}, chat.get("params") or {}
    messages, current = history.get("messages"), history.get("currentId")
    if not messages:
        listed = chat["messages"]
        messages = {str(n): {**each, "parentId": str(n - 1) if n else None} for n, each in enumerate(listed)}
        current = str(len(listed) - 1)
    nodes = {
        name: _Node(each.get("parentId"), each["role"], _text(each["content"]), _text(each.get("model") or ""))
        for name, each in messages.items()
    }
    stated = {ours: params[theirs] for theirs, ours in _OPEN_WEBUI.items() if params.get(theirs) is not None}
    known = {"sampling": stated} if "temperature" in stated else {}  # without one, the others do not say how it drew
    try:
        request = tuple(_admitted(known))
    except ValueError:  # a value that no sampler of specchat takes
        request = ()
    system = _text(params.get("system") or chat.get("system") or "")
    return _tree(chat.get("title") or title, nodes, current, system, request)


def _tree(
    title: Any, nodes: Mapping[str, _Node], current: str | None, system: str = "", request: tuple[str, ...] = ()
) -> ImportedChat:
    """A chat from its nodes; those of other roles are skipped.

    Several replies in a row (of a model that used tools) become one. `request` has the trace lines of every reply.
    """
    children: dict[str | None, list[str]] = {}
    for name, node in nodes.items():
        children.setdefault(node.parent if node.parent in nodes else None, []).append(name)
    path = set[str]()
    while current is not None and current in nodes and current not in path:
        path.add(current)
        current = nodes[current].parent
    messages: list[StoredMessage] = []
    waiting: list[tuple[str, int | None]] = [(name, None) for name in reversed(children.get(None, ()))]
    seen = 0
    while waiting:
        name, parent = waiting.pop()
        seen += 1
        _, role, text, model = nodes[name]
        if role == "system" and not system:
            system = text
        if role in ROLES and text.strip():
            above = messages[parent] if parent is not None else None
            if role == "assistant" and above is None:
                raise ValueError("it begins with a reply")
            if above is not None and above.role == role == "assistant":
                messages[above.id] = replace(above, content=f"{above.content}\n\n{text}", model=above.model or model)
            else:
                told = ("eos", model, request) if role == "assistant" else (None, "", ())
                reason, model, lines = told
                messages.append(StoredMessage(len(messages), role, text, reason, parent, name in path, model, lines))
                parent = len(messages) - 1
        waiting += [(child, parent) for child in reversed(children.get(name, ()))]
    if seen < len(nodes):
        raise ValueError("its messages follow each other in a circle")
    return _whole(title, messages, system)


def _whole(title: Any, messages: list[StoredMessage], system: str) -> ImportedChat:
    if not messages:
        raise ValueError("it has no messages")
    named = title if isinstance(title, str) and title.strip() else title_of(messages[0].content)
    return Chat(0, named, 0.0, system=system), messages


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a message is not text")
    return clean_prompt(value)
