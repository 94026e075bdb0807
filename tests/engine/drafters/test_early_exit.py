"""Early exit: the depth that theory asks for, exactness, and a cache that shows nothing of it."""

from __future__ import annotations

import pytest
import torch

from specchat.engine import Round, Sampling
from specchat.engine.backends.model_runner import ModelRunner
from specchat.engine.drafters.early_exit import EarlyExitDrafter
from specchat.engine.models.load import LoadedModel
from specchat.engine.sampling.penalties import Penalties
from tests.engine.sampled import check_distribution, sampled, says
from tests.engine.tiny import ask, ids_of, tiny_engine, tiny_model

LAYERS = 8


def idle_above(depth: int) -> LoadedModel:
    """A target whose layers from `depth` on add nothing."""
    target = tiny_model(layers=LAYERS)
    for layer in target.model.model.layers[depth:]:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    return target


@torch.inference_mode()
def test_the_shallowest_depth_that_says_the_same_is_chosen_and_the_slot_stays_as_it_was() -> None:
    for needed, chosen in ((2, 2), (4, 4), (5, 5)):
        runner = ModelRunner(idle_above(needed).model, 2, 128, 17)
        text = torch.arange(60)[None]
        runner.prefill(text, [1], [0])
        before = [layer.clone() for layer in (*runner.cache.keys, *runner.cache.values)]
        drafter = EarlyExitDrafter(runner, Penalties(2, 128, runner.device), LAYERS, 1.0, list(range(40, 90)))
        assert drafter._choose(1) == chosen
        for layer, kept in zip((*runner.cache.keys, *runner.cache.values), before, strict=True):
            assert torch.equal(layer, kept)


def test_where_the_upper_layers_add_nothing_every_draft_is_accepted() -> None:
    target = idle_above(4)
    with tiny_engine(target) as engine:
        plain = ids_of(list(engine.stream(ask("hello", drafter="none", max_tokens=40))))
        for sampling in (Sampling(), Sampling(temperature=1.0, seed=3)):
            request = ask("hello", drafter="early-exit", gamma=3, max_tokens=40, sampling=sampling)
            rounds = [event for event in engine.stream(request) if isinstance(event, Round)]
            assert all(record.accepted == len(record.drafted) for record in rounds[:-1])
            if sampling.greedy:
                assert ids_of(list(rounds)) == plain


@pytest.mark.slow
def test_sampled_output_has_the_targets_distribution() -> None:
    target, plain = (tiny_model(sharpness=6.0, layers=3) for _ in range(2))
    for model in (target, plain):  # layers that say something
        for layer in model.model.model.layers:
            layer.mlp.down_proj.weight.mul_(300.0)
    prompt = (104, 105, 33, 10, 7)
    with tiny_engine(target, slots=16, queue=3000) as engine:
        events = sampled(engine, "early-exit", prompt, 2500)
    rounds = [event for each in events for event in each if isinstance(event, Round)]
    assert 0 < sum(record.accepted for record in rounds) < sum(record.tested for record in rounds)
    assert check_distribution(events, prompt, says(plain))
