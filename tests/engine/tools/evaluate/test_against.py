"""Two targets along texts: their own logits say where they part."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from specchat.engine.errors import EngineError
from specchat.engine.tools.evaluate import Against, EvaluateOptions, compare_targets
from specchat.engine.tools.evaluate.targets import TargetComparison

TALKS = [
    {"category": category, "messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": reply}]}
    for category, prompt, reply in (
        ("animals", "the quick brown fox", "jumps over the lazy dog and the dog barks at the fox"),
        ("animals", "the dog", "barks at the quick brown night"),
        ("numbers", "0123", "456789 0123 456789"),
    )
]


class Pair(NamedTuple):
    """Two tiny targets and texts."""

    target: Path
    other: Path
    file: Path

    def compare(self, other: Path, dtype: str = "float32") -> TargetComparison:
        options = EvaluateOptions(
            models=self.file.parent, target=str(self.target), files=(self.file,), dtype="float32", context=128
        )
        return compare_targets(options, Against(str(other), dtype), lambda _: None)


@pytest.fixture(scope="module")
def pair(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Pair:
    file = tmp_path_factory.mktemp("talks") / "talks.jsonl"
    file.write_text("\n".join(map(json.dumps, TALKS)))
    return Pair(tiny_model(), tiny_model(seed=1), file)


@pytest.fixture(scope="module")
def found(pair: Pair) -> TargetComparison:
    return pair.compare(pair.other)


def _logits(folder: Path, prompt: tuple[int, ...], reply: tuple[int, ...]) -> torch.Tensor:
    """Logits computed by transformers alone."""
    from transformers import AutoModelForCausalLM

    network: Any = AutoModelForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        logits: torch.Tensor = network(torch.tensor([[*prompt, *reply]])).logits[0].double()
    return logits[len(prompt) - 1 : -1]


def test_choices_gaps_and_divergence_are_those_of_the_two_networks(pair: Pair, found: TargetComparison) -> None:
    for each in found.found:
        ours, theirs = (_logits(folder, each.text.prompt, each.text.reply) for folder in (pair.target, pair.other))
        top2 = ours.topk(2).values
        p, q = ours.log_softmax(-1), theirs.log_softmax(-1)
        assert list(each.ours) == ours.argmax(-1).tolist()
        assert list(each.theirs) == theirs.argmax(-1).tolist()
        assert each.gaps == pytest.approx((top2[:, 0] - top2[:, 1]).tolist(), abs=1e-3)
        assert each.kl == pytest.approx((p.exp() * (p - q)).sum(-1).tolist(), abs=1e-3)
        assert each.places == [i for i, same in enumerate(ours.argmax(-1) == theirs.argmax(-1)) if not same]


def test_figures_are_of_all_texts_and_of_each_category(found: TargetComparison) -> None:
    whole, animals, numbers = found.figures()
    assert [each["category"] for each in (whole, animals, numbers)] == ["", "animals", "numbers"]
    differing = [len(each.places) for each in found.found]
    assert (whole["texts"], whole["differing"]) == (3, sum(differing))
    assert (animals["differing"], numbers["differing"]) == (sum(differing[:2]), differing[2])
    assert whole["tokens"] == animals["tokens"] + numbers["tokens"]
    assert whole["same"] == 1 - whole["differing"] / whole["tokens"]
    assert whole["same_interval"].low <= whole["same"] <= whole["same_interval"].high
    assert 0 < whole["kl_interval"].low <= whole["kl"] <= whole["kl_interval"].high
    assert whole["first"] == sorted(each.places[0] for each in found.found)[1]


def test_where_nothing_differs_it_says_so(pair: Pair, tiny_model: Callable[..., Path]) -> None:
    found = pair.compare(tiny_model())  # the same weights in another folder
    (whole, *_) = found.figures()
    assert (whole["same"], whole["kl"], whole["first"], whole["gap"], whole["whole"]) == (1.0, 0.0, None, None, 3)
    assert "they never differ" in found.text()
    assert json.loads(found.json())["figures"][0]["first"] is None


def test_the_reports_say_the_same(found: TargetComparison) -> None:
    whole, table = json.loads(found.json()), list(csv.DictReader(io.StringIO(found.csv())))
    first = whole["figures"][0]
    assert [row["category"] for row in table] == ["", "animals", "numbers"]
    assert float(table[0]["kl"]) == first["kl"]
    assert sum(len(text["differences"]) for text in whole["texts"]) == first["differing"]
    assert f"{100 * first['same']:.2f} (" in found.text()
    worst = max(text["differences"][0]["gap"] for text in whole["texts"] if text["differences"])
    assert f"gap {worst:.3f}" in found.text()


def test_padded_vocabularies_are_compared_where_both_have_tokens(pair: Pair, tiny_model: Callable[..., Path]) -> None:
    from transformers import AutoModelForCausalLM

    padded = tiny_model()
    network: Any = AutoModelForCausalLM.from_pretrained(padded)
    network.resize_token_embeddings(340)
    network.save_pretrained(padded)
    assert pair.compare(padded).figures()[0]["kl"] == pytest.approx(0.0, abs=1e-5)


def test_bad_input_is_one_sentence(pair: Pair, tiny_model: Callable[..., Path]) -> None:
    with pytest.raises(EngineError, match="both targets are the same: name another model"):
        pair.compare(pair.target)
    foreign = tiny_model()
    tokens = json.loads((foreign / "tokenizer.json").read_text())
    vocabulary = tokens["model"]["vocab"]
    vocabulary["x"], vocabulary["y"] = vocabulary["y"], vocabulary["x"]
    (foreign / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(EngineError, match="the other target's vocabulary is not the target's: token"):
        pair.compare(foreign)
