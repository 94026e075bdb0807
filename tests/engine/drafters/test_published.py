"""Published heads: what they say is what their authors' definition says, and what does not fit is refused by name."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.decoding.tree import Tree
from specchat.engine.drafters.published.find import find_published
from specchat.engine.drafters.published.load import load_published
from specchat.engine.errors import EngineError
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import ignore_progress
from tests.engine.drafters.heads import scored_places
from tests.engine.published_heads import (
    HIDDEN,
    KINDS,
    KNOWN,
    TARGETS,
    Tensors,
    eagle_1,
    eagle_3,
    llama,
    medusa,
    medusa_of_ours,
    speculators,
    write,
)
from tests.hub import Hub, serving, use

TREE = Tree((0, 0, 1, 2, 2, 4))
"""Two tokens with one and two children; the last child but one has one child."""


@pytest.mark.parametrize("target_kind", TARGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_logit_is_that_of_the_published_definition(kind: str, target_kind: str, tmp_path: Path) -> None:
    make, scores_of = KINDS[kind]
    config, tensors = make()
    target, plain = TARGETS[target_kind](), TARGETS[target_kind]()  # a runner changes its model's attention
    loaded = load_published(write(tmp_path / "head", config, tensors), target)
    runner = TransformersBackend(target.model, 2, 128, 17, loaded.head.taps)
    for text, drafted, scores in scored_places(loaded, runner, TREE, [11, 12, 13, 14, 15, 16]):
        torch.testing.assert_close(scores, scores_of(tensors, config, plain, text, drafted), rtol=1e-3, atol=1e-3)
    if "d2t" in tensors:
        assert loaded.vocabulary.tolist() == tensors["t2d"].nonzero()[:, 0].tolist()


def _without(make: Callable[[], Any], name: str) -> tuple[dict[str, Any], Tensors]:
    config, tensors = make()
    del tensors[name]
    return config, tensors


def _with(make: Callable[[], Any], config: dict[str, Any] | None = None, **tensors: Any) -> Any:
    stated, made = make()
    return stated | (config or {}), made | {name.replace("__", "."): tensor for name, tensor in tensors.items()}


BAD = {
    "a tensor is missing": (_without(eagle_3, "midlayer.mlp.up_proj.weight"), "lacks the tensor midlayer.mlp.up_proj"),
    "no vocabulary map": (_without(eagle_3, "d2t"), "lacks the tensor d2t"),
    "a map that points outside": (_with(eagle_3, d2t=torch.full((KNOWN,), 250)), "points outside of the 260 tokens"),
    "maps that disagree": (_with(eagle_3, t2d=torch.zeros(260, dtype=torch.bool)), "contradict each other"),
    "another hidden size": (_with(eagle_3, {"hidden_size": 64}), "hidden size 64, and tiny has 32"),
    "another vocabulary": (_with(eagle_3, {"vocab_size": 32000}), "vocabulary of 32000 tokens, and tiny has 260"),
    "a deeper target": (
        _with(speculators, {"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}),
        "reads the depths 2, 16, 29 of its target, and this one has 8 layers",
    ),
    "two layers": (_with(eagle_1, {"num_hidden_layers": 2}), "has 2 layers, and one is supported"),
    "another kind of speculators": (_with(speculators, {"speculators_model_type": "dflash"}), "the kind 'dflash'"),
    "another activation": (_with(eagle_1, {"hidden_act": "swish7"}), "activation 'swish7'"),
    "positions that change": (
        _with(eagle_3, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
        "type 'dynamic', which are not supported",
    ),
    "no sizes": (({"draft_vocab_size": 3}, eagle_3()[1]), "does not state 'hidden_size'"),
    "a tensor too many": (_with(eagle_1, norm__weight=torch.ones(HIDDEN)), "has a tensor norm.weight that no head"),
    "no head at all": (({"hidden_size": 32}, {"x": torch.ones(1)}), "of no kind that is known"),
    "medusa of another training": (
        _with(medusa_of_ours, {"target_fingerprint": "0" * 64, "base_model_name_or_path": "wide"}),
        "made for wide, with other weights than tiny has",
    ),
    "medusa without what it shares": (_without(medusa, "1.2.weight"), "lacks the tensor 1.2.weight"),
    "medusa of another target": (
        _with(medusa, **{"0.2.weight": torch.ones(9, HIDDEN)}),
        r"shape \[9, 32\], and its config.json and this target ask for \[260, 32\]",
    ),
}


@pytest.mark.parametrize(("head", "words"), BAD.values(), ids=BAD.keys())
def test_what_does_not_fit_is_refused_by_name(head: tuple[dict[str, Any], Tensors], words: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "strange", *head)
    assert find_published(str(folder), ModelStore(tmp_path / "models"), ignore_progress) == folder
    with pytest.raises(EngineError, match=words) as caught:
        load_published(folder, llama())
    assert str(folder) in str(caught.value)


def test_a_file_that_holds_more_than_weights_is_refused_and_runs_no_code(tmp_path: Path) -> None:
    folder = write(tmp_path / "head", *eagle_1())
    (folder / "model.safetensors").unlink()
    torch.save({"fc.weight": SimpleNamespace()}, folder / "pytorch_model.bin")
    with pytest.raises(EngineError, match="damaged or holds more than weights"):
        load_published(folder, llama())


def test_a_head_on_the_hub_lands_in_the_store_as_far_as_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = write(tmp_path / "there", *eagle_3(), "pytorch_model.bin")
    (there / "README.md").write_text("a head")
    store = ModelStore(tmp_path / "models")
    with serving(Hub(**{"someone/head-1": there})) as hub:
        use(hub, monkeypatch, tmp_path / "no-hub-cache")
        for _ in range(2):
            folder = find_published("someone/head-1", store, ignore_progress)
            assert folder == store.path("someone--head-1")
    assert {name for name, _ in hub.asked} == {"config.json", "pytorch_model.bin"}
    assert load_published(folder, llama()).name == "head-1"
