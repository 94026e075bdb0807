"""What a session learns of a drafter, the next one starts with."""

import json
import stat
from pathlib import Path

import pytest

from specchat.engine import EngineConfig
from specchat.engine.decoding.drafter import DrafterProfile, RowProfile
from specchat.engine.decoding.gamma.acceptance_model import Experiences, VerifiedDraft
from specchat.engine.decoding.gamma.controller import GammaController
from specchat.engine.worker.assembly import assemble_loaded
from tests.engine.decoding.gamma.simulated import REST_S, Machine, growing, head_step, pass_s, speed
from tests.engine.tiny import ask, started, tiny_model


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "drafters.json"


def speed_of_first_reply(file: Path, seed: int) -> float:
    """Tokens per second of the first reply of a session, which then continues; its drafter promises too much."""
    machine, experiences = Machine(1, head_step, seed), Experiences(file, "pair")
    machine.gamma = GammaController(machine.costs, experiences)
    growing(machine, sure=0.5, replies=1, truth=0.1, reply=24)
    first = speed(machine.played)
    growing(machine, sure=0.5, replies=20, truth=0.1)
    experiences.save()
    return first


def test_the_first_reply_of_the_next_session_is_about_as_fast_as_plain_decoding(file: Path) -> None:
    plain = 1 / (pass_s(1, 0) + REST_S)
    assert speed_of_first_reply(file, seed=1) < 0.9 * plain
    assert speed_of_first_reply(file, seed=2) > 0.93 * plain


PROFILE = DrafterProfile((1, 2), {1: 0.8, 2: 0.3})


def learn(experiences: Experiences, accepted: int) -> float:
    """Observe drafts of four tokens; return the expected rate of acceptance."""
    controller = GammaController(Machine(1, head_step, 1).costs, experiences)
    model = controller.acceptance("d", PROFILE, RowProfile())
    for _ in range(20):
        controller.observe([model], [VerifiedDraft([1, 1, 2, 2], accepted)])
    return controller.acceptance("d", PROFILE, RowProfile()).rates[1]


def test_models_and_kinds_of_sampling_are_kept_apart(file: Path) -> None:
    for models, accepted in (("a", 4), ("b", 0)):
        experiences = Experiences(file, models)
        learn(experiences, accepted)
        experiences.save()
    rates = []
    for models in ("a", "b", "c"):
        controller = GammaController(Machine(1, head_step, 1).costs, Experiences(file, models))
        models_of = [controller.acceptance("d", PROFILE, RowProfile(), kind) for kind in ("greedy", "sampled")]
        rates += [model.rates[1] for model in models_of]
    assert rates[0] > rates[4] > rates[2]
    assert rates[1] == rates[3] == rates[4] == rates[5]


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"pair": 3}', '{"pair": {"d, greedy": {"priors": [[1, 2, [1, 2]]], "counts": [1, 1], "gain": []}}}'],
)
def test_a_damaged_file_is_ignored_and_replaced(file: Path, text: str) -> None:
    fresh = learn(Experiences(), 4)
    file.parent.mkdir()
    file.write_text(text)
    experiences = Experiences(file, "pair")
    assert learn(experiences, 4) == fresh
    experiences.save()
    assert "priors" in json.loads(file.read_text())["pair"]["d, greedy"]


def test_an_engine_keeps_what_it_has_learnt(file: Path) -> None:
    config = EngineConfig("tiny", Path(), context=256, experience=file)
    for _ in range(2):
        with started(config, lambda config, _: assemble_loaded(config, tiny_model())) as engine:
            list(engine.stream(ask("abcabcabc", max_tokens=20)))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, "it is its owner's"
    (models,) = json.loads(file.read_text()).values()
    assert any(name.endswith("greedy") for name in models)
