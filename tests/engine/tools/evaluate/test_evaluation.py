"""Drafters along a text: the very rounds that generation had."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specchat.engine import Engine, EngineConfig, EngineError, Message, Request, Round, TraceWriter
from specchat.engine.tools.evaluate import EvaluateOptions, evaluate
from specchat.engine.tools.evaluate.evaluation import Evaluation
from specchat.engine.tools.evaluate.rounds import Way

GAMMA = 3
PROMPTS = ("the quick brown fox", "the dog barks at the fox at the dog", "0123 0123 01")


class Pair:
    """A tiny target with a draft model, and what its drafters came to in generation."""

    def __init__(self, target: Path, draft: Path, folder: Path) -> None:
        self.target, self.draft, self.folder = target, draft, folder
        self.files: list[Path] = []
        self.rounds: dict[str, list[Round]] = {}
        config = EngineConfig(str(target), folder, draft=str(draft), dtype="float32", context=256)
        engine = Engine(config)
        engine.start()
        engine.wait_ready(60)
        for drafter in ("model", "model-tree", "hierarchical", "suffix", "ngram", "copy"):
            self._generate(engine, drafter)
        engine.close()

    def _generate(self, engine: Engine, drafter: str) -> None:
        self.rounds[drafter] = []
        for number, prompt in enumerate(PROMPTS):
            messages = (Message("user", prompt),)
            request = Request(f"{drafter}{number}", messages=messages, drafter=drafter, gamma=GAMMA, max_tokens=60)
            events = list(engine.stream(request))
            self.rounds[drafter] += [event for event in events if isinstance(event, Round)]
            if drafter == "ngram":  # the text is the same whatever drafted it
                writer = TraceWriter(self.folder / f"text{number}.jsonl")
                for record in (request, *events):
                    writer.write(record)
                writer.close()
                self.files.append(self.folder / f"text{number}.jsonl")

    def evaluate(self, **options: object) -> Evaluation:
        given = {"files": tuple(self.files), "gammas": (GAMMA,), "draft": str(self.draft), "dtype": "float32"} | options
        return evaluate(EvaluateOptions(self.folder, str(self.target), **given), lambda _line: None)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def pair(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Pair:
    wide = {"max_position_embeddings": 512, "eos_token_id": 3}
    return Pair(tiny_model(**wide), tiny_model(seed=0, **wide, num_hidden_layers=1), tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def found(pair: Pair) -> Evaluation:
    return pair.evaluate()


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["model", "model-tree", "hierarchical", "suffix", "ngram", "copy"])
def test_the_rounds_are_those_of_generation(pair: Pair, found: Evaluation, drafter: str) -> None:
    courses, rounds = found.courses[Way(drafter, GAMMA)], pair.rounds[drafter]
    assert sum(course.rounds for course in courses) == len(rounds)
    assert sum(course.emitted for course in courses) == sum(len(each.emitted) for each in rounds) == found.tokens
    assert sum(course.tested.total() for course in courses) == sum(each.tested for each in rounds)
    assert sum(sum(course.accepted.values()) for course in courses) == sum(each.accepted for each in rounds) > 0


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


def test_texts_are_cut_and_counted_as_asked(pair: Pair) -> None:
    found = pair.evaluate(limit=2, max_tokens=10, drafters=("suffix",), gammas=(2, 5))
    assert found.tokens == 20
    assert list(found.courses) == [Way("suffix", 2), Way("suffix", 5)]


def test_bad_input_is_one_sentence(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="drafter 'magic' is not available: choose one of model, model-tree, "):
        pair.evaluate(drafters=("magic",))
    with pytest.raises(EngineError, match="gamma is 0: it must be at least 1"):
        pair.evaluate(gammas=(0,))
    (tmp_path / "bad.jsonl").write_text("{}\n")
    with pytest.raises(EngineError, match=r"there is no text to evaluate on; bad\.jsonl: it has no conversation"):
        pair.evaluate(files=(tmp_path / "bad.jsonl",))
