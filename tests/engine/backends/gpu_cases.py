"""Drafters, sampling settings and tiny models that the tests of GPU paths go through."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from specchat.engine import Sampling
from specchat.engine.drafters.head.folder import LoadedHead
from specchat.engine.models.load import LoadedModel
from specchat.engine.research.tables import LoadedTables
from specchat.engine.tools.distill.tables import TokenCounter
from tests.engine.tiny import VOCABULARY, tiny_head, tiny_model

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


def parts(drafter: str, hidden: int = 32) -> tuple[LoadedModel, dict[str, Any]]:
    """A tiny target, and the draft model, head or tables that the drafter needs."""
    target = tiny_model(hidden=hidden)
    if drafter in ("bigram", "unigram"):
        counter = TokenCounter(VOCABULARY)
        counter.add(
            np.frombuffer(b"abababab the cat sat on the mat, the cat sat 0123456789", np.uint8).astype(np.int64)
        )
        return target, {"tables": LoadedTables(counter.counts(), "tables")}
    if drafter.startswith("model"):
        return target, {"draft": tiny_model(seed=1, layers=1, hidden=hidden)}
    if drafter in ("merged", "hierarchical"):
        draft, other = (tiny_model(seed=seed, layers=1, hidden=hidden, sharpness=25.0) for seed in (1, 2))
        return target, {"draft": draft, "more": [other]}
    return target, {"head": tiny_head(target)} if drafter in ("head", "combined") else {}


def moved(draft: dict[str, Any], move: Callable[..., list[Any]]) -> dict[str, Any]:
    """The parts of a drafter, moved to a device."""
    return {name: move(*part) if isinstance(part, list) else move(part)[0] for name, part in draft.items()}


def parts_to_cuda(*parts: LoadedModel | LoadedHead | LoadedTables) -> list[Any]:
    """Models and heads, moved to the GPU; tables move when they are made ready."""
    moved: list[Any] = []
    for part in parts:
        if isinstance(part, LoadedTables):
            moved.append(part)
            continue
        (part.model if isinstance(part, LoadedModel) else part.head).to("cuda")
        moved.append(replace(part, vocabulary=part.vocabulary.to("cuda")) if isinstance(part, LoadedHead) else part)
    return moved
