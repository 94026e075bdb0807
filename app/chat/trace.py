"""A recorded trace: as a web page that replays it, also in a notebook, and as a Chrome trace for Perfetto.

Chrome traces: "Trace Event Format", complete events with times in microseconds, one track per request. They open in
Perfetto (ui.perfetto.dev) and chrome://tracing.
"""

import html
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from specchat.app.chat.web_page import render, trace_data
from specchat.app.sanitize import escape_controls
from specchat.app.sources.observed import resolve_rounds
from specchat.engine import Admitted, Prefilled, Ready, Record, Request, Round, read_trace


class Trace:
    """Records of a trace, in order, as `engine.read_trace` returns them."""

    def __init__(self, records: Iterable[Record], name: str = "trace") -> None:
        self.records = tuple(records)
        self.name = name

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """Read a trace file.

        Raises:
            EngineError: it cannot be read, or is not a trace.
        """
        file = Path(path)
        return cls(read_trace(file), file.name)

    def page(self) -> str:
        """One HTML file that replays it."""
        return render(trace_data(self.records, self.name))

    def perfetto(self) -> str:
        """A Chrome trace."""
        return as_perfetto(self.records, self.name)

    def __repr__(self) -> str:
        return f"Trace({self.name!r}, {len(self.records)} records)"

    def _repr_html_(self) -> str:
        """The page in a sandboxed frame."""
        page = html.escape(self.page(), quote=True)
        style = "width:100%;height:32rem;border:1px solid #8884;border-radius:6px"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'


def as_perfetto(records: Iterable[Record], name: str) -> str:
    """A Chrome trace as JSON: per request the wait, the prefill, and draft, verification and rest of each round."""
    process = name
    events: list[dict[str, Any]] = []
    tracks: dict[str, int] = {}

    def track(request_id: str, label: str = "") -> int:
        if request_id not in tracks:
            tracks[request_id] = len(tracks) + 1
            events.append(_named("thread_name", tracks[request_id], label or request_id))
        return tracks[request_id]

    for record in resolve_rounds(records):
        match record:
            case Ready():
                process = f"{name}: {record.target}"
            case Request():
                prompt = record.messages[-1].content if record.messages else record.prompt or ""
                track(record.request_id, f"{record.request_id}: {' '.join(prompt.split())[:60]}")
            case Admitted():
                about = {"prompt tokens": record.prompt_tokens, "reused tokens": record.reused_tokens}
                start = record.at - record.queued_s
                events.append(_span("wait", track(record.request_id), start, record.queued_s, about))
            case Prefilled():
                about = {"done": record.done, "total": record.total}
                start = record.at - record.seconds
                events.append(_span("prefill", track(record.request_id), start, record.seconds, about))
            case Round():
                events += _round(record, track(record.request_id))
    events.insert(0, _named("process_name", 0, process))
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}) + "\n"


def _round(record: Round, track: int) -> list[dict[str, Any]]:
    start = record.at - record.seconds
    counts = {"drafted": len(record.drafted), "tested": record.tested, "accepted": record.accepted}
    about = {"round": record.number, "drafter": record.drafter, "gamma": record.steps, **counts}
    about |= {"emitted": len(record.emitted), "rows": record.rows, "text": escape_controls(record.text)}
    spans = [_span(f"round {record.number}", track, start, record.seconds, about)]
    for name, seconds in (("draft", record.draft_s), ("verify", record.verify_s), ("rest", record.rest_s)):
        spans.append(_span(name, track, start, seconds, {}))
        start += seconds
    return spans


def _span(name: str, track: int, start: float, seconds: float, about: dict[str, Any]) -> dict[str, Any]:
    category = "round" if name.startswith("round") else name
    times = {"ts": round(start * 1e6, 3), "dur": round(seconds * 1e6, 3)}
    return {"name": name, "cat": category, "ph": "X", **times, "pid": 1, "tid": track, "args": about}


def _named(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 1, "tid": track, "args": {"name": escape_controls(name)}}
