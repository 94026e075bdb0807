"""Export of a chat as Markdown or as JSON with every round, and import from that JSON and from other programs' exports.

Import takes all versions. A chat that cannot be read is left out, with a sentence that says why.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from hashlib import blake2b
from typing import Any

from specchat import engine
from specchat.app.chat import foreign_chats
from specchat.app.chat.attachments import as_block
from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.chat.foreign_chats import text_of
from specchat.app.chat.reply import Reply
from specchat.app.chat.reply_stage import ENDINGS, Stage
from specchat.app.chat.titles import title_of
from specchat.app.chat.web_page import chat_data, render
from specchat.app.sanitize import escape_json, escape_steering
from specchat.app.settings.controls import sampling_text
from specchat.app.storage.attachments import FILE, PASTE, Attachment
from specchat.app.storage.imports import ImportedChat
from specchat.app.storage.store import StoredMessage
from specchat.engine import FinishReason, PartKind

FORMATS = ("md", "json", "svg", "html")
"""Markdown, JSON, a picture, a web page that replays the chat."""
FORMAT, VERSION = "specchat-chat", 1
UNKNOWN_FORMAT = "it is not in the format of specchat, ChatGPT, Claude or Open WebUI"
_UNFIT = re.compile(r"[^\w]+")
_END = object()


def as_markdown(conversation: Conversation, model: str, *, thinking: bool = False) -> str:
    """Prompts and chosen replies; with `thinking`, that is quoted before each reply."""
    parts = [f"# {' '.join(conversation.title.split())}"]
    if conversation.system:
        parts += ["## System", conversation.system.strip()]
    for prompt in conversation.prompts:
        parts += ["## Results" if prompt.results else "## You", *map(_markdown_tool, prompt.results)]
        parts += [prompt.text.strip(), *map(as_block, prompt.attachments)]
        if (reply := prompt.reply) is not None:
            parts += [f"## {reply.model or model or 'Model'}", *_markdown_reply(reply, thinking=thinking)]
    return escape_steering("\n\n".join(part for part in parts if part)) + "\n"


def as_json(conversation: Conversation, model: str) -> str:
    """One object: every turn with all its replies, and each reply with its rounds as in a trace."""
    head = {"format": FORMAT, "version": VERSION, "title": conversation.title, "model": model or None}
    told = {
        **head,
        "id": conversation.chat.uid if conversation.chat else None,
        "updated_at": conversation.chat.updated_at if conversation.chat else None,
        "system": conversation.system or None,
        "turns": [
            {
                "prompt": prompt.text,
                "chosen": prompt.reply.place - 1 if prompt.reply is not None else None,
                "replies": [_reply(reply) for reply in prompt.replies],
                "version": prompt.place,
                "versions": [other.text for other in prompt.siblings if isinstance(other, Prompt)],
                **({"results": _tool_parts(prompt.results)} if prompt.results else {}),
                **({"attachments": [_attached(one) for one in prompt.attachments]} if prompt.attachments else {}),
            }
            for prompt in conversation.prompts
        ],
    }
    return escape_json(json.dumps(told, ensure_ascii=False, indent=1)) + "\n"


def in_format(conversation: Conversation, form: str, model: str = "", *, thinking: bool = False) -> str:
    """A chat as Markdown, JSON, or a page that replays it: one of `FORMATS` but the picture."""
    if form == "html":
        return render(chat_data(conversation, model))
    return as_markdown(conversation, model, thinking=thinking) if form == "md" else as_json(conversation, model)


def file_stem(title: str) -> str:
    """A file name for a chat: its first words in lower case, joined by hyphens."""
    words = _UNFIT.sub("-", title.lower()).strip("-")
    return words[:40].rstrip("-") or "chat"


def _markdown_reply(reply: Reply, *, thinking: bool) -> list[str]:
    notes = []
    quoted = "\n".join(f"> {line}".rstrip() for line in reply.thinking.splitlines()) if thinking else ""
    if len(reply.siblings) > 1:
        notes.append(f"reply {reply.place} of {len(reply.siblings)}")
    if reply.sampling is not None:
        notes.append(sampling_text(reply.sampling))
    if reply.running:
        notes.append("still being written")
    elif reply.stage is Stage.INTERRUPTED:
        notes.append("interrupted")
    elif reply.reason not in (FinishReason.EOS, FinishReason.STOP, None):
        notes.append(reply.message or ENDINGS[reply.reason])
    return [quoted, reply.text.strip(), *map(_markdown_tool, reply.calls), f"*{' · '.join(notes)}*" if notes else ""]


def _markdown_tool(part: engine.MessagePart) -> str:
    """A call, or a result: the tool, and what it gets or returned as a block of code."""
    return as_block(Attachment(PASTE, f"{'calls' if part.kind is PartKind.CALL else 'from'} {part.name}", part.text))


def _tool_parts(parts: Iterable[engine.MessagePart]) -> list[dict[str, str]]:
    return [{"id": part.call_id, "name": part.name, "text": part.text} for part in parts]


def _read_tool_parts(exported: Iterable[Mapping[str, Any]], kind: PartKind) -> list[engine.MessagePart]:
    return [engine.MessagePart(kind, *(text_of(each[name]) for name in ("text", "name", "id"))) for each in exported]


def _attached(attachment: Attachment) -> dict[str, Any]:
    return {name: getattr(attachment, name) for name in ("kind", "name", "text", "tokens")}


def _reply(reply: Reply) -> dict[str, Any]:
    s, gain = reply.metrics, reply.figures.gain
    return {
        "text": reply.text,
        "thinking": reply.thinking,
        **({"calls": _tool_parts(reply.calls)} if reply.calls else {}),
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
        **({"measured": json.loads(engine.to_json(reply.measured))} if reply.measured else {}),
        "rounds": [json.loads(engine.to_json(record)) for record in reply.rounds],
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
            which = f" ({title_of(title)})" if isinstance(title, str) and title else ""
            problems.append(f"chat {number}{which} is left out: {_why(error)}")
    return chats, problems


def _broken(chats: int) -> str:
    if not chats:
        return "not an export that specchat can read: expected JSON of specchat, ChatGPT, Claude or Open WebUI"
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
        chat, messages = foreign_chats.chatgpt_chat(exported)
    elif "chat_messages" in exported:
        chat, messages = foreign_chats.claude_chat(exported)
    elif isinstance(exported.get("chat"), dict):
        chat, messages = foreign_chats.open_webui_chat(exported["chat"], exported.get("title"))
    else:
        raise ValueError(UNKNOWN_FORMAT)
    stated = (exported.get(name) for name in ("conversation_id", "id", "uuid"))
    about = exported.get("title"), exported.get("create_time"), exported.get("created_at"), messages[0].content
    uid = next((each for each in stated if isinstance(each, str) and each), None)
    uid = uid or blake2b(json.dumps(about).encode(), digest_size=16).hexdigest()
    return replace(chat, uid=text_of(uid), updated_at=foreign_chats.change_time(exported)), messages


def _own(exported: Mapping[str, Any]) -> ImportedChat:
    messages: list[StoredMessage] = []
    parent: int | None = None
    for turn in exported["turns"]:
        attached = tuple(_attachment(each) for each in turn.get("attachments", ()))
        prompt = len(messages)
        results = _read_tool_parts(turn.get("results", ()), PartKind.RESULT)
        said = (*results, *engine.message_parts(text_of(turn["prompt"])))
        messages.append(StoredMessage(prompt, "user", said, parent=parent, attachments=attached))
        parent = prompt
        for place, reply in enumerate(turn["replies"]):
            rounds = [engine.from_json(json.dumps(values)) for values in reply["rounds"]]
            thinking, text = text_of(reply.get("thinking", "")), text_of(reply["text"])
            known = {name: reply[name] for name in ("sampling", "left_out") if reply.get(name)}
            if (
                "thinking" not in reply and (marks := engine.marks_of(text)) is not None
            ):  # an earlier version left it there
                known["thinking"] = list(marks)
                thinking, text = engine.split_reply(text, marks)
            tokens = next((record.position for record in rounds if isinstance(record, engine.Round)), 0)
            lines = (*foreign_chats.admitted_line(known, tokens), *map(engine.to_json, rounds))
            if "measured" in reply and isinstance(
                final := engine.from_json(json.dumps(reply["measured"])), engine.Measured
            ):
                lines = (*lines, engine.to_json(final))
            chosen = place == (turn["chosen"] or 0)
            reason = reply["reason"] if reply["reason"] in set(FinishReason) else FinishReason.CANCELLED.value
            if chosen:
                parent = len(messages)
            told = reason, prompt, chosen, text_of(reply.get("model", "")), lines
            calls = _read_tool_parts(reply.get("calls", ()), PartKind.CALL)
            said = (*engine.message_parts(text, thinking), *calls)
            messages.append(StoredMessage(len(messages), "assistant", said, *told))
    return foreign_chats.whole_chat(exported.get("title"), messages, text_of(exported.get("system") or ""))


def _attachment(exported: Mapping[str, Any]) -> Attachment:
    kind, tokens = exported["kind"], exported["tokens"]
    if kind not in (FILE, PASTE) or not isinstance(tokens, int | None):
        raise ValueError("an attachment is neither a file nor a paste")
    if not 0 <= (tokens or 0) < 1 << 63:
        raise ValueError("the number of tokens of an attachment is out of range")
    return Attachment(kind, text_of(exported["name"]), text_of(exported["text"]), tokens)
