"""Export of a chat: Markdown to read, JSON with every round."""

from __future__ import annotations

import json
import re
from typing import Any

from specchat.app.chat.attachments import as_block
from specchat.app.chat.conversation import Conversation
from specchat.app.chat.reply import ENDINGS, Reply, Stage
from specchat.app.chat.turn import Turn
from specchat.app.storage.attachments import Attachment
from specchat.engine import FinishReason, to_json

FORMATS = ("md", "json", "svg", "html")
"""Markdown, JSON, a picture, a web page that replays the chat."""
FORMAT, VERSION = "specchat-chat", 1
_UNFIT = re.compile(r"[^\w]+")


def as_markdown(conversation: Conversation, model: str, *, thinking: bool = False) -> str:
    """Prompts and chosen replies; with `thinking`, that is quoted before each reply."""
    parts = [f"# {' '.join(conversation.title.split())}"]
    if conversation.system:
        parts += ["## System", conversation.system.strip()]
    for turn in conversation.turns:
        parts += ["## You", turn.prompt.strip(), *map(as_block, turn.attachments)]
        if turn.reply is not None:
            parts += [f"## {model or 'Model'}", *_markdown_reply(turn, turn.reply, thinking=thinking)]
    return "\n\n".join(part for part in parts if part) + "\n"


def as_json(conversation: Conversation, model: str) -> str:
    """One object: every turn with all its replies, and each reply with its rounds as in a trace."""
    exported = {
        "format": FORMAT,
        "version": VERSION,
        "title": conversation.title,
        "model": model or None,
        "system": conversation.system or None,
        "turns": [
            {
                "prompt": turn.prompt,
                "chosen": turn.place - 1 if turn.reply is not None else None,
                "replies": [_reply(reply) for reply in turn.replies],
                "version": turn.version,
                "versions": [other.prompt for other in turn.versions],
                **({"attachments": [_attachment(each) for each in turn.attachments]} if turn.attachments else {}),
            }
            for turn in conversation.turns
        ],
    }
    return json.dumps(exported, ensure_ascii=False, indent=1) + "\n"


def file_stem(title: str) -> str:
    """A file name for a chat: its first words in lower case, joined by hyphens."""
    words = _UNFIT.sub("-", title.lower()).strip("-")
    return words[:40].rstrip("-") or "chat"


def _markdown_reply(turn: Turn, reply: Reply, *, thinking: bool) -> list[str]:
    notes = []
    thought, answer = reply.thought.split(reply.text)
    quoted = "\n".join(f"> {line}".rstrip() for line in thought.splitlines()) if thinking else ""
    if len(turn.replies) > 1:
        notes.append(f"reply {turn.place} of {len(turn.replies)}")
    if reply.running:
        notes.append("still being written")
    elif reply.stage is Stage.INTERRUPTED:
        notes.append("interrupted")
    elif reply.reason not in (FinishReason.EOS, FinishReason.STOP, None):
        notes.append(reply.message or ENDINGS[reply.reason])
    return [quoted, answer.strip(), f"*{' · '.join(notes)}*" if notes else ""]


def _attachment(attachment: Attachment) -> dict[str, Any]:
    return {name: getattr(attachment, name) for name in ("kind", "name", "text", "tokens")}


def _reply(reply: Reply) -> dict[str, Any]:
    s = reply.metrics
    return {
        "text": reply.text,
        "stage": reply.stage.value,
        "reason": reply.reason.value if reply.reason else None,
        "message": reply.message,
        **({"left_out": list(reply.left_out)} if reply.left_out else {}),
        "figures": {
            "rounds": s.rounds,
            "tokens": s.emitted,
            "tested": s.tested,
            "accepted": s.accepted,
            "acceptance": s.acceptance,
            "tau": s.mean_emitted_length,
            "tokens_per_second": s.tokens_per_second,
        },
        "rounds": [json.loads(to_json(record)) for record in reply.rounds],
    }
