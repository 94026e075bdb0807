"""Drafters, sampling settings and tiny models that the tests of GPU paths go through, and the replies of an engine."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from specchat.engine import Event, Finished, FinishReason, Notice, Request, Round, Sampling
from specchat.engine.drafters.block.reading import load_block
from specchat.engine.drafters.published.load import load_published
from specchat.engine.models.load import LoadedModel
from tests.engine.pretend_cuda import PretendedGpu, parts_to_gpu
from tests.engine.published_heads import llama
from tests.engine.tiny import ids_of, tiny_head, tiny_model, tiny_tables
from tests.engine.turns import Turns

DRAFTERS = ["none", "suffix", "ngram", "copy", "random", "model", "model-tree", "head", "combined", "bigram", "unigram"]
SAMPLINGS = {
    "greedy": Sampling(temperature=0.0),
    "sampled": Sampling(temperature=1.0),
    "seeded": Sampling(temperature=1.0, seed=5),
    "filtered": Sampling(temperature=0.9, top_k=40, top_p=0.9, min_p=0.02),
    "top-k": Sampling(temperature=0.9, top_k=5),
    "penalised": Sampling(
        temperature=0.9, repetition_penalty=1.2, presence_penalty=0.4, logit_bias=((65, 1.5),), seed=5
    ),
    "lenient": Sampling(temperature=1.0, lenience=0.8),
    "xtc": Sampling(temperature=0.9, xtc_probability=0.5, xtc_threshold=0.02),
}
WAITS = {"merged": 2, "hierarchical": 1 + 4, "model-tree": 99}
"""How often the host may wait in a round, where that is not once: it sees the drafts while they are made."""


def parts(drafter: str, hidden: int = 32) -> tuple[LoadedModel, dict[str, Any]]:
    """A tiny target, and the draft model, head or tables that the drafter needs."""
    target = tiny_model(hidden=hidden)
    if drafter in ("bigram", "unigram"):
        return target, {"tables": tiny_tables(b"abababab the cat sat on the mat, the cat sat 0123456789")}
    if drafter.startswith("model"):
        return target, {"draft": tiny_model(seed=1, layers=1, hidden=hidden)}
    if drafter in ("merged", "hierarchical"):
        draft, other = (tiny_model(seed=seed, layers=1, hidden=hidden, sharpness=25.0) for seed in (1, 2))
        return target, {"draft": draft, "more": [other]}
    return target, {"head": tiny_head(target)} if drafter in ("head", "combined") else {}


def moved(draft: dict[str, Any], move: Callable[..., list[Any]]) -> dict[str, Any]:
    """The parts of a drafter, moved to a device."""
    return {name: move(*part) if isinstance(part, list) else move(part)[0] for name, part in draft.items()}


def replies(
    requests: Sequence[Request],
    drafter: str,
    gpu: PretendedGpu | None = None,
    *,
    exact: bool = False,
    gives_up: bool = False,
    real: bool = False,
    hidden: int = 32,
    published: Path | None = None,
) -> list[list[int]]:
    """The tokens of each reply; on the pretended device, every turn is checked for what the host waits for."""
    target, draft = (llama(), {}) if published else parts(drafter, hidden)
    if gpu is not None or real:
        move = partial(parts_to_gpu, real=real)
        target, draft = move(target)[0], moved(draft, move)
    if published:  # which goes to where the target is
        load, part = (load_block, "block") if drafter == "block" else (load_published, "head")
        head = load(published, target)
        draft = {part: head if gpu is None else parts_to_gpu(head)[0]}

    turns = Turns(target, draft, prefill_chunk=32, exact=exact, seed=5)
    if real:
        turns.box.drain()  # it may say that the device is not exact
    turns.submit(requests)
    events: list[Event] = []
    while turns.busy:
        if gpu is not None:
            gpu.waits.clear()
        turn = turns.turn()
        assert gives_up or not any(isinstance(event, Notice) for event in turn), turn
        if gpu is not None:
            in_round = any(isinstance(event, Round) for event in turn)
            most = WAITS.get(drafter, 1) if in_round or drafter == "model-tree" else 0
            assert set(gpu.waits) <= {"to the host", "tolist"}, turn
            assert len(gpu.waits) <= most, turn
        events += turn
    turns.end()
    if not gives_up:
        assert turns.made.target.performance_warnings == []
        assert all(runner.performance_warnings == [] for runner in turns.made.draft_runners)
    ends = [event for event in events if isinstance(event, Finished)]
    assert {end.reason for end in ends} <= {FinishReason.LENGTH, FinishReason.EOS}
    return replies_of(requests, events)


def replies_of(requests: Sequence[Request], events: Sequence[Event]) -> list[list[int]]:
    """The tokens of each request's reply."""
    return [ids_of(e for e in events if getattr(e, "request_id", None) == r.request_id) for r in requests]
