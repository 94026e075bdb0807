"""Record the traces of both lanes that the side-by-side snapshots are made from: the real default model as it comes.

Run from the repository: python -m scripts.record_side_traces. It replaces assets/traces/side-*.jsonl.
"""

from __future__ import annotations

from dataclasses import replace

from scripts.record_traces import HEADS, new_trace, said
from specchat.engine import EngineConfig, Event, Finished, LaneEngine, Message, Outbox, Request, models_folder

TURNS = (
    "Write a short list of what to see in Lisbon in two days.",
    "Write the same list again, with one more place at the end.",
)
LANES = (("left", "none", 0), ("right", "combined", None))


def main() -> None:
    """Record both lanes over both turns, interleaved."""
    plain = EngineConfig("smollm2-135m", models_folder(), slots=1)
    engine = LaneEngine((plain, replace(plain, heads=HEADS)))
    engine.start()
    engine.wait_ready()
    histories: list[list[Message]] = [[], []]
    with new_trace("side-left") as left, new_trace("side-right") as right:
        traces = (left, right)
        for trace, loaded in zip(traces, engine.lanes, strict=True):
            trace.write(loaded.ready)
        for number, text in enumerate(TURNS):
            outbox = Outbox()
            requests = []
            for lane, (name, drafter, gamma) in enumerate(LANES):
                histories[lane].append(Message("user", text))
                request = Request(
                    f"{name}-{number}", tuple(histories[lane]), drafter=drafter, gamma=gamma, max_tokens=72
                )
                requests.append(request)
                traces[lane].write(request)
                engine.submit(request, outbox, lane)
            for lane, events in enumerate(_collect(outbox, requests)):
                for event in events:
                    traces[lane].write(event)
                histories[lane].append(Message("assistant", said(events)))
    engine.close()


def _collect(outbox: Outbox, requests: list[Request]) -> list[list[Event]]:
    found: dict[str, list[Event]] = {request.request_id: [] for request in requests}
    while not all(events and isinstance(events[-1], Finished) for events in found.values()):
        event = outbox.get(1.0)
        if event is not None:
            found[event.request_id].append(event)  # type: ignore[union-attr, index]
    return list(found.values())


if __name__ == "__main__":
    main()
