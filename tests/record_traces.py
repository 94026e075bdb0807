"""Record the traces that the snapshot tests and the README's pictures are made from, with the real default model.

Run from the repository: python -m tests.record_traces. It replaces the files in assets/traces.
"""

from __future__ import annotations

from pathlib import Path

from app.paths import models_folder
from engine import Engine, EngineConfig, Finished, Message, Request, Round, Sampling, TraceWriter

FOLDER = Path(__file__).parent.parent / "assets" / "traces"
CHAT = (
    "What should I see in Lisbon in two days? Answer with a short list.",
    "Write the same list again, with one more place at the end.",
)
CODE = (
    "Write a Python class Stack with push, pop and peek.",
    "Rename the class to Pile and keep everything else as it is.",
)


def record(engine: Engine, name: str, turns: tuple[str, ...], sampling: Sampling) -> None:
    """One conversation into one trace file."""
    path = FOLDER / f"{name}.jsonl"
    path.unlink(missing_ok=True)
    messages: list[Message] = []
    with TraceWriter(path) as trace:
        trace.write(engine.wait_ready())
        for number, text in enumerate(turns):
            messages.append(Message("user", text))
            request = Request(f"{name}-{number}", tuple(messages), sampling=sampling, gamma=4, max_tokens=160)
            trace.write(request)
            reply = ""
            for event in engine.stream(request):
                trace.write(event)
                if isinstance(event, Round):
                    reply += event.text
                elif isinstance(event, Finished):
                    reply += event.tail
            messages.append(Message("assistant", reply))


def main() -> None:
    """Record every trace."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    engine = Engine(EngineConfig("smollm2-135m", models_folder()))
    engine.start()
    record(engine, "chat", CHAT, Sampling())
    record(engine, "code", CODE, Sampling())
    record(engine, "sampled", CHAT, Sampling(temperature=0.8, top_p=0.95, seed=7))
    engine.close()


if __name__ == "__main__":
    main()
