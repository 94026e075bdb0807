"""Drafters along a text: the very rounds that generation had."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specchat.engine import EngineError, Sampling
from specchat.engine.models.load import load_model
from specchat.engine.progress import ignore_progress
from specchat.engine.research.pass_drafter import save_look_ahead
from specchat.engine.tools.evaluate.evaluation import Evaluation
from specchat.engine.tools.evaluate.rounds import Way
from tests.engine.tools.evaluate.generated import GAMMA, Generated

PROMPTS = ("the quick brown fox", "the dog barks at the fox at the dog", "0123 0123 01")
DRAFTERS = ("ngram", "model", "model-tree", "hierarchical", "suffix", "copy")
WIDE = {"max_position_embeddings": 512, "eos_token_id": 3}


@pytest.fixture(scope="module")
def pair(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Generated:
    draft = tiny_model(seed=0, **WIDE, num_hidden_layers=1)
    pair = Generated(tiny_model(**WIDE), draft, tmp_path_factory.mktemp("home"))
    pair.generate(DRAFTERS, [(prompt, Sampling()) for prompt in PROMPTS])
    return pair


@pytest.fixture(scope="module")
def found(pair: Generated) -> Evaluation:
    return pair.evaluate()


def assert_same_rounds(generated: Generated, found: Evaluation, drafter: str) -> None:
    courses, rounds = found.courses[Way(drafter, GAMMA)], generated.rounds[drafter]
    assert sum(course.rounds for course in courses) == len(rounds)
    assert sum(course.emitted for course in courses) == sum(len(each.emitted) for each in rounds) == found.tokens
    assert sum(course.tested.total() for course in courses) == sum(each.tested for each in rounds) > 0
    assert sum(sum(course.accepted.values()) for course in courses) == sum(each.accepted for each in rounds)


@pytest.mark.slow
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_rounds_are_those_of_generation(pair: Generated, found: Evaluation, drafter: str) -> None:
    assert_same_rounds(pair, found, drafter)
    assert any(each.accepted for each in pair.rounds[drafter])


def test_rounds_with_look_ahead_positions_are_those_of_generation(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    target = tiny_model(**WIDE)
    model = load_model(target, torch.device("cpu"), torch.float32, ignore_progress)
    rows = model.model.get_input_embeddings().weight[100 : 100 + GAMMA]
    save_look_ahead(tmp_path / "ahead", rows, model.name, model.fingerprint, {})
    generated = Generated(target, tmp_path / "ahead", tmp_path)
    generated.generate(["pass"], [(PROMPTS[0], Sampling())])
    assert_same_rounds(generated, generated.evaluate(drafters=("pass",)), "pass")


@pytest.mark.slow
def test_the_text_is_the_target_s_own(found: Evaluation) -> None:
    assert found.agreed == found.tokens


@pytest.mark.slow
def test_figures_and_their_intervals(found: Evaluation) -> None:
    for each in found.figures():
        assert each.tau_interval.low <= each.tau <= each.tau_interval.high
        assert each.alpha == each.accepted / each.tested
        assert 1 <= each.tau <= GAMMA + 1
        assert len(each.by_position) <= GAMMA
    assert {each.category for each in found.figures()} == {"", "text0", "text1", "text2"}


@pytest.mark.slow
def test_the_reports_say_the_same(found: Evaluation) -> None:
    text, whole, table = found.text(), json.loads(found.json()), list(csv.DictReader(io.StringIO(found.csv())))
    assert "100 % of them are its own greedy choice" in text
    first = whole["figures"][0]
    assert (first["drafter"], table[0]["drafter"]) == ("model", "model")
    assert f"{first['tau']:.2f} (" in text
    assert float(table[0]["tau"]) == first["tau"]
    only = {(p["has"]["drafter"], p["has_not"]["drafter"]): sum(map(len, p["places"])) for p in whole["only_one"]}
    assert f"model γ 3 has, suffix γ 3 has not: {only['model', 'suffix']} token" in text
    drafted = {way.drafter: sum(map(sum, (c.predicted for c in courses))) for way, courses in found.courses.items()}
    assert only["model", "suffix"] - only["suffix", "model"] == drafted["model"] - drafted["suffix"]


def test_texts_are_cut_and_counted_as_asked(pair: Generated) -> None:
    found = pair.evaluate(limit=2, max_tokens=10, drafters=("suffix",), gammas=(2, 5))
    assert found.tokens == 20
    assert list(found.courses) == [Way("suffix", 2), Way("suffix", 5)]


def test_bad_input_is_one_sentence(pair: Generated, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="drafter 'magic' is not available: choose one of model, model-tree, "):
        pair.evaluate(drafters=("magic",))
    with pytest.raises(EngineError, match="gamma is 0: it must be at least 1"):
        pair.evaluate(gammas=(0,))
    (tmp_path / "bad.jsonl").write_text("{}\n")
    with pytest.raises(EngineError, match=r"there is no text to evaluate on; bad\.jsonl: it has no conversation"):
        pair.evaluate(files=(tmp_path / "bad.jsonl",))
