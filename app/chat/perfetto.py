"""Rounds as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Format: "Trace Event Format", JSON array of complete events; times are in microseconds. One track for each request.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from specchat.app.sanitize import escape_controls
from specchat.app.sources.observed import resolve_rounds
from specchat.engine import Admitted, Prefilled, Ready, Record, Request, Round


def as_perfetto(records: Iterable[Record], name: str) -> str:
    """One JSON object: wait, prefill, and draft, verify and rest of each round."""
    events: list[dict[str, Any]] = [_named("process_name", 0, escape_controls(name))]
    tracks: dict[str, int] = {}

    def track(request_id: str, label: str = "") -> int:
        if request_id not in tracks:
            tracks[request_id] = len(tracks) + 1
            events.append(_named("thread_name", tracks[request_id], escape_controls(label or request_id)))
        return tracks[request_id]

    for record in resolve_rounds(records):
        match record:
            case Ready():
                events[0] = _named("process_name", 0, escape_controls(f"{name}: {record.target}"))
            case Request():
                asked = record.messages[-1].content if record.messages else record.prompt or ""
                track(record.request_id, f"{record.request_id}: {' '.join(asked.split())[:60]}")
            case Admitted():
                about = {"prompt tokens": record.prompt_tokens, "reused tokens": record.reused_tokens}
                events.append(
                    _span("wait", track(record.request_id), record.at - record.queued_s, record.queued_s, about)
                )
            case Prefilled():
                about = {"done": record.done, "total": record.total}
                start = record.at - record.seconds
                events.append(_span("prefill", track(record.request_id), start, record.seconds, about))
            case Round():
                events += _round(record, track(record.request_id))
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}) + "\n"


def _round(record: Round, track: int) -> list[dict[str, Any]]:
    start = record.at - record.seconds
    about = {
        "round": record.number,
        "drafter": record.drafter,
        "gamma": record.gamma,
        "drafted": len(record.drafted),
        "tested": record.tested,
        "accepted": record.accepted,
        "emitted": len(record.emitted),
        "rows": record.rows,
        "text": escape_controls(record.text),
    }
    spans = [_span(f"round {record.number}", track, start, record.seconds, about)]
    for name, seconds in (("draft", record.draft_s), ("verify", record.verify_s), ("rest", record.rest_s)):
        spans.append(_span(name, track, start, seconds, {}))
        start += seconds
    return spans


def _span(name: str, track: int, start: float, seconds: float, about: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "cat": "round" if name.startswith("round") else name,
        "ph": "X",
        "ts": round(start * 1e6, 3),
        "dur": round(seconds * 1e6, 3),
        "pid": 1,
        "tid": track,
        "args": about,
    }


def _named(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 1, "tid": track, "args": {"name": name}}
