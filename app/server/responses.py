"""Replies of /v1/responses: from the engine's events to items, and to the events of a stream."""

import json
from collections.abc import Sequence
from typing import Any

from specchat.app.server.choice import CallDelta, Choice, Delta
from specchat.app.server.formats import Format, usage
from specchat.app.server.responses_body import ResponsesBody
from specchat.engine import Admitted

_ECHOED = ("instructions", "max_output_tokens", "temperature", "top_p", "tools", "tool_choice", "reasoning", "text")
"""Fields of a request that are part of its answer."""
_USUAL = {
    "tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "error": None, "incomplete_details": None,
    "instructions": None, "metadata": {}, "temperature": None, "top_p": None,
}  # fmt: skip
_TEXTS = {"reasoning": "reasoning_text", "message": "output_text"}
"""Type of the text of an item."""
_PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
"""Beginnings of the ids of items."""
_STATUS = {"stop": "completed", "tool_calls": "completed", "error": "failed"}
"""Status by the ending of a choice; others are incomplete."""
_BEGUN = ("created", "in_progress")


class ResponsesFormat(Format):
    """Writes one reply.

    Args:
        call_id: its id.
        model: the name of the model.
        created: seconds since 1970.
        body: the request.
    """

    def __init__(self, call_id: str, model: str, created: int, body: ResponsesBody) -> None:
        given = body.model_dump(include={*_ECHOED, "parallel_tool_calls", "metadata"}, exclude_none=True, by_alias=True)
        about = {"id": call_id, "object": "response", "created_at": created, "model": model}
        self._about = {**about, **_USUAL, **given}
        self._output: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        """The item that grows."""
        self._number = 0
        """Events so far."""

    def chunk(self, choice: Choice, delta: Delta) -> bytes:
        """The events of a stream for one event of the engine."""
        events: list[dict[str, Any]] = []
        if isinstance(delta.event, Admitted):
            events += [self._event(f"response.{name}", response=self._response("in_progress")) for name in _BEGUN]
        for kind, text in (("reasoning", delta.thinking), ("message", delta.text)):
            if text.strip() or (text and self._open is not None and self._open["type"] == kind):
                events += self._grown(kind, text)
        for part in delta.calls:
            events += self._called(part)
        if delta.ending:
            status = _STATUS.get(delta.ending, "incomplete")
            events += self._closed(cut=status != "completed")
            response = self._response(status, choice, delta.ending)
            events.append(self._event(f"response.{response['status']}", response=response))
        return b"".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events)

    def end(self, choices: Sequence[Choice], each: int, *, counts: bool) -> bytes:  # noqa: ARG002
        """Nothing: the last event has everything."""
        return b""

    def whole(self, choices: Sequence[Choice], deltas: Sequence[Sequence[Delta]], each: int) -> bytes:  # noqa: ARG002
        """A whole reply."""
        for delta in deltas[0]:
            self.chunk(choices[0], delta)
        ending = deltas[0][-1].ending or "stop"
        return json.dumps(self._response(_STATUS.get(ending, "incomplete"), choices[0], ending)).encode()

    def _response(self, status: str, choice: Choice | None = None, ending: str = "") -> dict[str, Any]:
        """The reply so far, with its counts at its end."""
        made = {**self._about, "status": status, "output": list(self._output)}
        if status == "incomplete":
            made["incomplete_details"] = {"reason": "max_output_tokens" if ending == "length" else ending}
        if choice is not None and choice.failure:
            made["error"] = {"code": "server_error", "message": choice.failure.message}
        if choice is not None:
            counts = usage([choice], 1)
            made["usage"] = {
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": counts["prompt_tokens_details"] | {"cache_write_tokens": 0},
                "output_tokens": counts["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counts["total_tokens"],
            }
        return made

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}

    def _place(self) -> dict[str, Any]:
        """Place of the open item in the response."""
        assert self._open is not None
        return {"item_id": self._open["id"], "output_index": len(self._output)}

    def _begun(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Begin an item."""
        item = f"{_PREFIXES[kind]}_{self._about['id'].rpartition('_')[2]}{len(self._output)}"
        self._open = {"id": item, "type": kind, "status": "in_progress", **fields}
        return self._event("response.output_item.added", output_index=len(self._output), item=dict(self._open))

    def _ended(self, *, cut: bool = False) -> dict[str, Any]:
        """End the open item."""
        assert self._open is not None
        self._open["status"] = "incomplete" if cut else "completed"
        event = self._event("response.output_item.done", output_index=len(self._output), item=self._open)
        self._output.append(self._open)
        self._open = None
        return event

    def _grown(self, kind: str, text: str) -> list[dict[str, Any]]:
        """Text of the thinking or the answer, which begins an item if another one is open."""
        events: list[dict[str, Any]] = []
        if self._open is None or self._open["type"] != kind:
            fields: dict[str, Any] = {"role": "assistant"} if kind == "message" else {"summary": []}
            events += [*self._closed(), self._begun(kind, content=[], **fields)]
            assert self._open is not None
            self._open["content"] = [_part(kind, "")]
            if kind == "message":
                part = dict(self._open["content"][0])
                events += [self._event("response.content_part.added", **self._place(), content_index=0, part=part)]
        assert self._open is not None
        self._open["content"][0]["text"] += text
        more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        delta = self._event(f"response.{_TEXTS[kind]}.delta", **self._place(), content_index=0, delta=text, **more)
        return [*events, delta]

    def _closed(self, *, cut: bool = False) -> list[dict[str, Any]]:
        """End the item that grows, if there is one."""
        if self._open is None:
            return []
        if self._open["type"] == "function_call":  # it is not complete
            return [self._written(), self._ended(cut=True)]
        kind, part, place = self._open["type"], self._open["content"][0], {**self._place(), "content_index": 0}
        more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        events = [self._event(f"response.{_TEXTS[kind]}.done", **place, text=part["text"], **more)]
        if kind == "message":
            events.append(self._event("response.content_part.done", **place, part=part))
        return [*events, self._ended(cut=cut)]

    def _called(self, part: CallDelta) -> list[dict[str, Any]]:
        """A part of a call of a function."""
        call, events = part.call, []
        if part.begins:
            events = [*self._closed(), self._begun("function_call", call_id=call.id, name=call.name, arguments="")]
        if self._open is None or self._open["type"] != "function_call":  # text followed a part of it: it was none
            return []
        self._open["arguments"] += call.arguments
        if call.arguments:
            kind = "response.function_call_arguments.delta"
            events.append(self._event(kind, **self._place(), delta=call.arguments))
        return [*events, self._written(), self._ended()] if part.ends else events

    def _written(self) -> dict[str, Any]:
        """The event that a call has its arguments."""
        assert self._open is not None
        about = {key: self._open[key] for key in ("name", "arguments")}
        return self._event("response.function_call_arguments.done", **self._place(), **about)


def _part(kind: str, text: str) -> dict[str, Any]:
    return {"type": _TEXTS[kind], "text": text} | ({"annotations": [], "logprobs": []} if kind == "message" else {})
