"""Chats of other programs' exports: ChatGPT, Claude and Open WebUI.

What has no text, such as an image, becomes a placeholder in brackets. Calls of tools and their results are left out.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from specchat.app.chat.titles import title_of
from specchat.app.sanitize import clean_prompt
from specchat.app.storage.attachments import FILE, Attachment
from specchat.app.storage.imports import ImportedChat
from specchat.app.storage.store import Chat, StoredMessage
from specchat.engine import Admitted, from_json, message_parts, to_json

ROLES = ("user", "assistant")
_TIMES = ("updated_at", "update_time", "created_at", "create_time")
"""Keys of the last change of a chat, the most exact first."""
_LATEST = 1e11
_OPEN_WEBUI = {"repeat_penalty": "repetition_penalty"} | {
    name: name for name in ("temperature", "top_k", "top_p", "min_p", "seed", "presence_penalty", "frequency_penalty")
}
"""Our names of the sampling settings of Open WebUI."""
_REASONING = re.compile(r'<details type="reasoning"[^>]*>\s*(?:<summary>[^<]*</summary>)?(.*?)</details>\s*', re.DOTALL)
"""Thinking in a reply of Open WebUI."""
_CITED = re.compile(" *\ue200([^\ue200\ue201]*)\ue201")
"""A citation, a name or the like in ChatGPT's text: its kind and arguments, separated by U+E202."""
_SOURCE = re.compile(r"turn\d+\w+\d+")
_MARKS = re.compile("[\ue200-\ue20f]")
_MEDIA = {"image": "[image]", "audio": "[audio]", "video": "[video]"}
"""Placeholders by a word in the type of a part of a message."""


class _Node(NamedTuple):
    """A message of another program's tree."""

    parent: str | None
    role: str
    text: str
    model: str = ""
    """Model of a reply; empty if the file does not state it."""
    thinking: str = ""
    attachments: tuple[Attachment, ...] = ()


def text_of(value: Any) -> str:
    """A text of the file.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, str):
        raise ValueError("a message is not text")
    return clean_prompt(value)


def change_time(exported: Mapping[str, Any]) -> float:
    """The last change of a chat in seconds since 1970, which the file states as a number or in ISO 8601; 0 if not."""
    for at in (exported.get(name) for name in _TIMES):
        if isinstance(at, str):
            with suppress(ValueError, OverflowError, OSError):
                at = datetime.fromisoformat(at).timestamp()
        if isinstance(at, int | float) and 0 < at < _LATEST:
            return at
    return 0.0


def admitted_line(known: Mapping[str, Any], tokens: int = 0) -> Iterator[str]:
    """The trace line of a reply's request with its known fields; no line without any.

    Args:
        known: fields of `Admitted`.
        tokens: of its prompt.
    """
    if known:
        values = json.loads(to_json(Admitted("", tokens, 0, 0.0, 0.0)))
        yield to_json(from_json(json.dumps(values | known)))


def chatgpt_chat(exported: Mapping[str, Any]) -> ImportedChat:
    """A chat of ChatGPT's conversations.json.

    Raises:
        ValueError: it has no messages that can be shown.
    """
    mapping = exported["mapping"].items()
    nodes = {name: _chatgpt_node(node.get("parent"), node.get("message") or {}) for name, node in mapping}
    return _tree(exported.get("title"), nodes, exported.get("current_node"))


def _chatgpt_node(parent: str | None, message: Mapping[str, Any]) -> _Node:
    content, about = message.get("content") or {}, message.get("metadata") or {}
    role, kind = (message.get("author") or {}).get("role", ""), content.get("content_type")
    model = text_of(about.get("model_slug") or "")
    if kind == "user_editable_context":  # the user's custom instructions
        return _Node(parent, "system", _joined([content.get("user_profile"), content.get("user_instructions")]))
    if kind == "thoughts":
        thoughts = [_joined([each.get("summary"), each.get("content")]) for each in content.get("thoughts") or []]
        return _Node(parent, role, "", model, _joined(thoughts))
    if role in ROLES and about.get("is_visually_hidden_from_conversation"):
        return _Node(parent, "", "")
    recipient = message.get("recipient") or "all"
    if recipient.startswith("canmore.") and role == "assistant":
        return _Node(parent, role, _canvas(_parts(content) or content.get("text")), model)
    if role == "assistant" and recipient != "all":  # a call of a tool
        return _Node(parent, "", "")
    if role == "tool":  # only what it shows in the chat
        shown = ["[image]" for part in content.get("parts") or [] if "image_asset_pointer" in str(_kind(part))]
        return _Node(parent, "assistant" if shown else role, _joined(shown), model)
    text = _parts(content)
    if kind == "code" and isinstance(content.get("text"), str):
        text = _fenced(content["text"], content.get("language"))
    files = [each.get("name") for each in about.get("attachments") or [] if "image/" not in str(each.get("mime_type"))]
    placeholders = [f"[file: {name}]" for name in files if role == "user" and isinstance(name, str)]
    text = _cited(text, about.get("content_references") or ()) if role == "assistant" else text
    return _Node(parent, role, _joined([text, *placeholders]), model)


def _canvas(call: Any) -> str:
    """A placeholder for a document next to the chat; it is followed by the text that the document begins with."""
    try:
        given = json.loads(call)
        name, text, kind = given.get("name"), given.get("content"), str(given.get("type"))
    except (TypeError, ValueError, AttributeError):
        return "[canvas]"
    text = _fenced(text, kind.partition("/")[2]) if kind.startswith("code") and isinstance(text, str) else text
    return _joined([f"[canvas: {name}]" if isinstance(name, str) else "[canvas]", text])


def _fenced(code: str, language: Any) -> str:
    return f"```{language if language not in (None, 'unknown') else ''}\n{code}\n```"


def _cited(text: str, references: Iterable[Mapping[str, Any]]) -> str:
    """A reply with its citations as ChatGPT shows them: the file states the text of most of them."""
    for reference in references:
        mark = reference.get("matched_text")
        if isinstance(mark, str) and (_MARKS.search(mark) or "\u3010" in mark):
            shown = reference.get("alt")
            text = text.replace(mark, shown if isinstance(shown, str) else "")
    return _MARKS.sub("", _CITED.sub(_uncited, text))


def _uncited(mark: re.Match[str]) -> str:
    """The name or the words in a mark of which the file does not state the text; empty for mere sources."""
    _, *arguments = mark[1].split("\ue202")
    words = next((each for each in arguments if not _SOURCE.fullmatch(each)), "")
    if words[:1] in ("[", "{"):
        with suppress(ValueError, IndexError, KeyError):
            words = json.loads(words)[1]
    spaces = mark[0][: mark[0].index("\ue200")]
    return spaces + words if isinstance(words, str) and words and words[:1] not in ("[", "{") else ""


def _kind(part: Any) -> Any:
    return (part.get("content_type") or part.get("type") or "") if isinstance(part, Mapping) else ""


def _parts(content: Mapping[str, Any]) -> str:
    return _joined(_pieces(content.get("parts") or []))


def _pieces(parts: Iterable[Any]) -> list[Any]:
    """The text of each part of a message, spoken words included, or its placeholder."""
    said = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    spoken = any("audio" in str(_kind(part)) and text for part, text in zip(parts, said, strict=True))
    pieces = []
    for part, text in zip(parts, said, strict=True):
        medium = next((word for word in _MEDIA if word in str(_kind(part))), None)
        silent = medium == "audio" and spoken  # the recording of what is written
        pieces.append(text if text or medium is None or silent else _MEDIA[medium])
    return pieces


def _joined(parts: Iterable[Any]) -> str:
    return clean_prompt("\n\n".join(part for part in parts if isinstance(part, str) and part.strip()))


def claude_chat(exported: Mapping[str, Any]) -> ImportedChat:
    """A chat of Claude's conversations.json.

    Raises:
        ValueError: it has no messages that can be shown.
    """
    nodes: dict[str, _Node] = {}
    last: str | None = None
    for number, message in enumerate(exported["chat_messages"]):
        name = str(message.get("uuid") or number)
        nodes[name] = _claude_node(message.get("parent_message_uuid") or last, message)
        last = name
    return _tree(exported.get("name"), nodes, exported.get("current_leaf_message_uuid") or last)


def _claude_node(parent: str | None, message: Mapping[str, Any]) -> _Node:
    blocks = message.get("content") or []
    said = _joined(_pieces([block for block in blocks if _kind(block) not in ("thinking", "tool_use", "tool_result")]))
    thinking = _joined(block.get("thinking") for block in blocks if _kind(block) == "thinking")
    attached = [each for each in message.get("attachments") or [] if isinstance(each.get("extracted_content"), str)]
    texts = ((each.get("file_name"), each["extracted_content"]) for each in attached)
    given = tuple(Attachment(FILE, text_of(name or "pasted.txt"), text_of(text), None) for name, text in texts if text)
    names = [each.get("file_name") for each in (*(message.get("files") or ()), *(attached if not said else ()))]
    placeholders = [f"[file: {name}]" for name in names if isinstance(name, str) and name]
    text = _joined([said or message.get("text"), *placeholders]) or ("[file]" if given else "")
    return _Node(parent, "user" if message["sender"] == "human" else message["sender"], text, "", thinking, given)


def open_webui_chat(chat: Mapping[str, Any], title: Any) -> ImportedChat:
    """A chat of Open WebUI's export.

    Raises:
        ValueError: it has no messages that can be shown, or one of them is no text.
    """
    history, params = chat.get("history") or {}, chat.get("params") or {}
    messages, current = history.get("messages"), history.get("currentId")
    if not messages:
        listed = chat["messages"]
        messages = {str(n): {**each, "parentId": str(n - 1) if n else None} for n, each in enumerate(listed)}
        current = str(len(listed) - 1)
    nodes = {name: _open_webui_node(each) for name, each in messages.items()}
    stated = {ours: params[theirs] for theirs, ours in _OPEN_WEBUI.items() if params.get(theirs) is not None}
    known = {"sampling": stated} if "temperature" in stated else {}  # without one, the others do not say how it drew
    try:
        request = tuple(admitted_line(known))
    except ValueError:  # a value that no sampler of specchat takes
        request = ()
    system = text_of(params.get("system") or chat.get("system") or "")
    return _tree(chat.get("title") or title, nodes, current, system, request)


def _open_webui_node(message: Mapping[str, Any]) -> _Node:
    content, role = message["content"], message["role"]
    text = _joined(_pieces(content)) if isinstance(content, list) else text_of(content)
    thoughts = _REASONING.findall(text) if role == "assistant" else []
    text = _REASONING.sub("", text) if thoughts else text
    thinking = _joined(re.sub(r"(?m)^> ?", "", thought).strip() for thought in thoughts)
    return _Node(message.get("parentId"), role, text, text_of(message.get("model") or ""), thinking)


def _tree(
    title: Any, nodes: Mapping[str, _Node], current: str | None, system: str = "", request: tuple[str, ...] = ()
) -> ImportedChat:
    """A chat from its nodes; nodes of other roles are skipped.

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
    waiting: list[tuple[str, int | None, str]] = [(name, None, "") for name in reversed(children.get(None, ()))]
    seen = 0
    while waiting:
        name, parent, thought = waiting.pop()
        seen += 1
        _, role, text, model, thinking, attachments = nodes[name]
        thought = _joined([thought, thinking])
        following = children.get(name, ())
        if role == "system" and not system:
            system = text
        if role in ROLES and (text.strip() or (thought and not following)):
            above = messages[parent] if parent is not None else None
            if role == "assistant" and above is None:
                raise ValueError("it begins with a reply")
            if above is not None and above.role == role == "assistant":
                said = message_parts(_joined([above.content, text]), _joined([above.thinking, thought]))
                messages[above.id] = replace(above, parts=said, model=above.model or model)
            else:
                reason, *rest = ("eos", model, request) if role == "assistant" else (None, "", (), attachments)
                said = message_parts(text, thought if role == "assistant" else "")
                messages.append(StoredMessage(len(messages), role, said, reason, parent, name in path, *rest))
                parent = len(messages) - 1
            thought = ""
        waiting += [(child, parent, thought) for child in reversed(following)]
    if seen < len(nodes):
        raise ValueError("its messages follow each other in a circle")
    return whole_chat(title, messages, system)


def whole_chat(title: Any, messages: list[StoredMessage], system: str) -> ImportedChat:
    """A chat with these messages.

    Raises:
        ValueError: there are none.
    """
    if not messages:
        raise ValueError("it has no messages")
    shown = title if isinstance(title, str) and title.strip() else title_of(messages[0].content)
    return Chat(0, shown, 0.0, system=system), messages
