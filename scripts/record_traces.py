"""Record the traces that the snapshot tests and the README's pictures are made from, with the real default model.

Run from the repository: python -m scripts.record_traces [NAME ...]. It replaces the files in assets/traces, or the ones
that are named.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from specchat.engine import (
    Engine,
    EngineConfig,
    Event,
    Finished,
    Message,
    Outbox,
    Request,
    Round,
    Sampling,
    TraceWriter,
    models_folder,
)

FOLDER = Path(__file__).parent.parent / "assets" / "traces"
HEADS = (FOLDER.parent / "heads",)
CHAT = (
    "What should I see in Lisbon in two days? Answer with a short list.",
    "Write the same list again, with one more place at the end.",
)
DETAIL = "Explain in four sentences why the sky is blue."
CODE = (
    "Write a Python class Stack with push, pop and peek.",
    "Rename the class to Pile and keep everything else as it is.",
)


def record(engine: Engine, name: str, turns: tuple[str, ...], sampling: Sampling, options: dict[str, Any]) -> None:
    """Record one conversation in one trace file; `options` are further fields of the requests."""
    options = {"gamma": 4, "max_tokens": 160, **options}
    messages: list[Message] = []
    with new_trace(name) as trace:
        trace.write(engine.wait_ready())
        for number, text in enumerate(turns):
            messages.append(Message("user", text))
            request = Request(f"{name}-{number}", tuple(messages), sampling=sampling, **options)
            trace.write(request)
            events = list(engine.stream(request))
            for event in events:
                trace.write(event)
            messages.append(Message("assistant", said(events)))


def new_trace(name: str) -> TraceWriter:
    """A trace file that replaces an older one."""
    path = FOLDER / f"{name}.jsonl"
    path.unlink(missing_ok=True)
    return TraceWriter(path)


def said(events: Iterable[Event]) -> str:
    """The text of a reply."""
    return "".join(e.text if isinstance(e, Round) else e.tail for e in events if isinstance(e, Round | Finished))


def record_detail(name: str) -> None:
    """A draft that is often nearly right, with the top-k of both models at every judged position.

    No small model of the target's family comes with specchat, so the draft is the target with noise in its weights.
    """
    with tempfile.TemporaryDirectory() as temporary:
        draft = noisy_copy(models_folder() / "smollm2-135m", Path(temporary) / "noisy-copy")
        sampling, config = Sampling(temperature=0.5, top_p=0.9), {"draft": str(draft), "seed": 3}
        record_alone(name, (DETAIL,), sampling, config, {"drafter": "model", "max_tokens": 96, "detail": 8})


def record_alone(
    name: str, turns: tuple[str, ...], sampling: Sampling, config: dict[str, Any], options: dict[str, Any]
) -> None:
    """Record one conversation on its own engine; `config` holds further fields of its configuration."""
    engine = Engine(EngineConfig("smollm2-135m", models_folder(), **config))
    engine.start()
    record(engine, name, turns, sampling, options)
    engine.close()


def noisy_copy(model: Path, folder: Path, noise: float = 0.09) -> Path:
    """The model in another folder, each weight moved by `noise` standard deviations of its matrix."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, folder)
    torch.manual_seed(1)
    weights = {
        name: (w + noise * w.float().std() * torch.randn(w.shape)).to(w.dtype) if w.ndim == 2 else w
        for name, w in load_file(model / "model.safetensors").items()
    }
    save_file(weights, folder / "model.safetensors")
    return folder


def record_lanes(engine: Engine, name: str) -> None:
    """Three prompts at once: one batch, three lanes."""
    prompts = ("Count from one to twenty in words.", "Say the alphabet.", CHAT[0])
    requests = [
        Request(f"{name}-{i}", (Message("user", text),), gamma=4, max_tokens=64) for i, text in enumerate(prompts)
    ]
    box = Outbox()
    with new_trace(name) as trace:
        trace.write(engine.wait_ready())
        for request in requests:
            trace.write(request)
            engine.submit(request, box)
        open_ones = len(requests)
        while open_ones:
            event = box.get(60)
            assert event is not None, "no event for a minute"
            trace.write(event)
            open_ones -= isinstance(event, Finished)


_BY_HEAD = {"drafter": "head", "detail": 8}
ALONE: dict[str, tuple[tuple[str, ...], Sampling, dict[str, Any], dict[str, Any]]] = {
    "usual": (CODE, Sampling(), {"heads": HEADS}, {"gamma": None}),
    "sampled": (CHAT, Sampling(temperature=0.8, top_p=0.95), {"seed": 7}, {}),
    "tree": ((DETAIL,), Sampling(temperature=0.8), {"heads": HEADS, "seed": 3}, {**_BY_HEAD, "max_tokens": 96}),
    "tour": ((DETAIL,), Sampling(temperature=0.8), {"heads": HEADS, "seed": 57}, {**_BY_HEAD, "max_tokens": 32}),
}
"""What `record_alone` takes, by the name of the trace.

The tree is drafted by the head that comes with specchat: several tokens for a position. The reply of the tour drafts
chains in the rounds of `app.chat.lessons`, the first partly wrong, and has p ≠ q at its first token; another head or
sampler needs another seed for that.
"""


def main() -> None:
    """Record every trace, or the named ones."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = sys.argv[1:] or [*ALONE, "detail", "chat", "code", "lanes"]
    engine = Engine(EngineConfig("smollm2-135m", models_folder()))
    engine.start()
    if "chat" in wanted:
        record(engine, "chat", CHAT, Sampling(), {})
    if "code" in wanted:
        record(engine, "code", CODE, Sampling(), {})
    if "lanes" in wanted:
        record_lanes(engine, "lanes")
    engine.close()
    if "detail" in wanted:
        record_detail("detail")
    for name, conversation in ALONE.items():
        if name in wanted:
            record_alone(name, *conversation)


if __name__ == "__main__":
    main()
