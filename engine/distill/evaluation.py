"""What a draft head reaches in the engine itself, on prompts it has not been trained on."""

from __future__ import annotations

from collections.abc import Sequence

from engine.assembly import Assembly, put_together
from engine.bench.plan import Variant
from engine.bench.prompts import Prompt
from engine.bench.runner import run_pass
from engine.config import EngineConfig
from engine.drafters.head import HeadDrafter
from engine.engine import Engine
from engine.events import Round
from engine.head.folder import Acceptance, LoadedHead
from engine.loading import LoadedModel
from engine.progress import Progress
from engine.request import DEFAULT_GAMMA, Sampling
from engine.statistics import Statistics

GAMMA = DEFAULT_GAMMA
_ROWS = 4
_MAX_TOKENS = 96


def evaluate(
    config: EngineConfig, model: LoadedModel, head: LoadedHead, prompts: Sequence[Prompt], temperature: float
) -> Acceptance:
    """Answer prompts with the head drafting `GAMMA` tokens a round.

    Args:
        config: of the engine; its target is not loaded again.
        model: the target.
        head: the head.
        prompts: held out of the training.
        temperature: 0 for greedy; else seeds count from 0.
    """

    def assemble(config: EngineConfig, progress: Progress) -> Assembly:  # noqa: ARG001
        return put_together(config, model, head=head)

    engine = Engine(config, assemble)
    engine.start()
    try:
        engine.wait_ready()
        sampling = Sampling(temperature=temperature, seed=0 if temperature else None)
        variant = Variant(HeadDrafter.name, GAMMA)
        passed = run_pass(engine, variant, prompts, _ROWS, sampling, _MAX_TOKENS)
    finally:
        engine.close(None)
    statistics = Statistics()
    for events in passed:
        for event in events:
            if isinstance(event, Round):
                statistics.add(event)
    return Acceptance(
        statistics.acceptance or 0.0, tuple(statistics.per_position), statistics.mean_emitted_length or 1.0
    )
