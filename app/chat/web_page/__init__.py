"""A chat or a trace as one HTML file, which replays it in a browser without a network."""

import html
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from specchat import engine
from specchat.app.chat.conversation import Conversation
from specchat.app.chat.parts import parts_of, tool_line
from specchat.app.chat.reply import Reply
from specchat.app.chat.reply_stage import ENDINGS, Stage
from specchat.app.sanitize import escape_controls
from specchat.app.sources.observed import drawn_text, resolve_rounds
from specchat.app.sources.player import IDLE_S, schedule

Data = dict[str, Any]
_PARTS = ("TITLE", "STYLE", "DATA", "SCRIPT")


def render(data: dict[str, Any]) -> str:
    """One HTML file with style, data and script. No text in the data can end the script element."""
    held = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")
    values = {"TITLE": html.escape(data["title"]), "STYLE": _file("page.css"), "SCRIPT": _file("page.js"), "DATA": held}
    page, rest = "", _file("page.html")
    for name in _PARTS:
        before, _, rest = rest.partition(f"@{name}@")
        page += before + values[name]
    return page + rest


@cache
def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text("utf-8")


def trace_data(records: Sequence[engine.Record], title: str) -> Data:
    """A trace: replies run at their recorded times, concurrent ones side by side."""
    records = resolve_rounds(records)
    times = schedule(records)
    ready = next((r for r in records if isinstance(r, engine.Ready)), None)
    replies: dict[str, Data] = {}
    metrics: dict[str, engine.Metrics] = {}
    calls: dict[str, list[str]] = {}
    for due, record in zip(times, records, strict=True):
        match record:
            case engine.Request():
                prompt = _said(record.messages[-1]) if record.messages else record.prompt or "token ids"
                replies[record.request_id] = _reply(prompt, due)
                metrics[record.request_id], calls[record.request_id] = engine.Metrics(), []
            case engine.Admitted() if record.request_id in replies:
                metrics[record.request_id].add(record)
                given = escape_controls("".join(token.text for token in record.given))
                replies[record.request_id] |= {"given": given, "begun": _s(due)}
            case engine.Round() if record.request_id in replies:
                metrics[record.request_id].add(record)
                rounds = replies[record.request_id]["rounds"]
                rounds.append(_round(len(rounds), record, metrics[record.request_id], due))
                calls[record.request_id] += _calls(record)
            case engine.Totals() if record.request_id in replies:
                metrics[record.request_id].add(record)
                for last in replies[record.request_id]["rounds"][-1:]:
                    last["figures"] = _figures(metrics[record.request_id])
            case engine.Finished() if record.request_id in replies:
                tail = "\n".join([record.tail, *calls[record.request_id], *_calls(record)])
                _end(replies[record.request_id], tail, record.message or ENDINGS[record.reason], due)
    return _page(title, ready.target if ready else None, list(replies.values()))


def chat_data(conversation: Conversation, model: str | None = None) -> Data:
    """A stored chat: the chosen replies one after the other, each at its own speed."""
    replies: list[Data] = []
    due = 0.0
    for prompt in conversation.prompts:
        shown = _reply(_said(prompt.as_message), due)
        replies.append(shown)
        if prompt.reply is not None:
            due = _stored(prompt.reply, shown, due)
        due += IDLE_S
    return _page(conversation.title, model, replies)


def _said(message: engine.Message) -> str:
    """The results of calls in a message, a line each, and its text."""
    return "\n".join((*map(tool_line, message.parts_of(engine.PartKind.RESULT)), message.content))


def _calls(record: engine.Round | engine.Finished) -> list[str]:
    """The calls that a record completes, a line each."""
    return [tool_line(part) for part in parts_of(record) if part.kind is engine.PartKind.CALL]


def _stored(reply: Reply, shown: Data, start: float) -> float:
    """Fill in a stored reply and return the time of its end."""
    metrics, due = engine.Metrics(), start
    before: engine.Round | None = None
    for index, record in enumerate(reply.rounds):
        gap = record.seconds if before is None else record.at - before.at  # may be of another clock
        due += min(max(gap, 0.0), max(record.seconds, IDLE_S))
        if index >= reply.given:
            metrics.add(record)
        shown["rounds"].append(_round(index, record, metrics, due))
        before = record
    ending = "interrupted" if reply.stage is Stage.INTERRUPTED else ENDINGS[reply.reason] if reply.reason else ""
    said = "\n".join([reply.tail, *map(tool_line, reply.calls)])
    _end(shown, said, " · ".join([reply.message or ending, *reply.origin]), due)
    return due


def _page(title: str, model: str | None, replies: list[Data]) -> Data:
    ends = [round_["t"] for reply in replies for round_ in reply["rounds"]]
    ends += [reply["end"] for reply in replies if reply["end"] is not None]
    about: Data = {"title": escape_controls(" ".join(title.split()))}
    about["model"] = escape_controls(model) if model else None
    return about | {"duration": max(ends, default=0.0), "replies": replies}


def _reply(prompt: str, due: float) -> Data:
    begun = {"prompt": escape_controls(prompt.strip()), "start": _s(due), "given": "", "rounds": []}
    return {**begun, "tail": "", "ending": "", "end": None}


def _end(shown: Data, tail: str, ending: str, due: float) -> None:
    shown["tail"], shown["ending"], shown["end"] = escape_controls(tail), escape_controls(ending), _s(due)


def _round(index: int, record: engine.Round, metrics: engine.Metrics, due: float) -> Data:
    """A round of this index in its reply; `metrics` includes it, unless the reply started with it."""
    about = {"t": _s(due), "n": index + 1, "drafter": record.drafter, "gamma": record.steps}
    shown: Data = {
        **about,
        "rows": record.rows,
        "ms": [round(1000 * s, 2) for s in (record.draft_s, record.verify_s, record.rest_s)],
        "tokens": [
            [escape_controls(drawn_text(record, token)), token.fate.value, token.id] for token in record.tokens()
        ],
        "tested": [
            [_p(value) for value in values] for values in zip(record.p, record.q, record.u, record.beta, strict=True)
        ],
        "figures": _figures(metrics),
    }
    if record.thinking:
        flags = record.thinking
        shown["thinking"] = [flags[min(each.place, record.accepted, len(flags) - 1)] for each in record.tokens()]
    if any(record.refused):
        shown["refused"] = [
            [[escape_controls(other.text), _p(other.p), _p(other.q), _p(other.u)] for other in others]
            for others in record.refused
        ]
    if record.detail:
        lists = "target", "draft", "residual"
        shown["detail"] = [{name: _list(getattr(each, name)) for name in lists} for each in record.detail]
    return shown


def _figures(s: engine.Metrics) -> Data:
    """The panel's figures after a round, as `engine.Metrics` defines them; the page rounds them."""
    same = {name: getattr(s, name) for name in ("rounds", "tested", "accepted", "wasted", "alpha")}
    speeds = {"speed": s.recent_tokens_per_second, "mean": s.tokens_per_second}
    return same | speeds | {"tokens": s.emitted, "tau": s.mean_emitted_length, "positions": s.per_position}


def _list(candidates: Sequence[engine.Candidate]) -> list[list[Any]]:
    return [[escape_controls(each.text), _p(each.probability)] for each in candidates]


def _p(value: float) -> float:
    return float(f"{value:.4g}")


def _s(seconds: float) -> float:
    return round(seconds, 4)
