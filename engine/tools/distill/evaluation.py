"""Evaluation of a draft in the engine, on held-out prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specchat.engine.config import EngineConfig
from specchat.engine.drafters.head.folder import HeadAcceptance
from specchat.engine.engine import Engine
from specchat.engine.progress import Progress
from specchat.engine.request import DEFAULT_GAMMA, Sampling
from specchat.engine.round import Round
from specchat.engine.stats.metrics import Metrics
from specchat.engine.tools.prompts import Prompt
from specchat.engine.tools.runner import Variant, run_pass
from specchat.engine.worker.assembly import Assembly

GAMMA = DEFAULT_GAMMA
_ROWS = 4
_MAX_TOKENS = 96


def evaluate(
    config: EngineConfig,
    assemble: Callable[[EngineConfig], Assembly],
    drafter: str,
    prompts: Sequence[Prompt],
    temperature: float,
) -> HeadAcceptance:
    """Generate replies with `GAMMA` tokens drafted per round.

    Args:
        config: of the engine.
        assemble: puts the target, which is loaded, together with the draft.
        drafter: name of the drafter that uses it.
        prompts: held out of the training.
        temperature: 0 for greedy; otherwise seeds are 0, 1, …
    """

    def assemble_quietly(config: EngineConfig, progress: Progress) -> Assembly:  # noqa: ARG001
        return assemble(config)

    engine = Engine(config, assemble_quietly)
    engine.start()
    try:
        engine.wait_ready()
        sampling = Sampling(temperature=temperature, seed=0 if temperature else None)
        variant = Variant(drafter, GAMMA)
        passed = run_pass(engine, variant, prompts, _ROWS, sampling, _MAX_TOKENS)
    finally:
        engine.close(None)
    metrics = Metrics()
    for events in passed:
        for event in events:
            if isinstance(event, Round):
                metrics.add(event)
    return HeadAcceptance(metrics.acceptance or 0.0, tuple(metrics.per_position), metrics.mean_emitted_length or 1.0)
