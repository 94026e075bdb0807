"""Gemma 4 assistants: every logit is that of transformers' assistant; replies are unchanged; misfits are named."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4TextConfig

from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.decoding.tree import chain
from specchat.engine.drafters.published.find import find_published
from specchat.engine.drafters.published.load import load_published
from specchat.engine.errors import EngineError
from specchat.engine.models.load import LoadedModel
from specchat.engine.models.packed.load import PackedModel, load_dequantized
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import ignore_progress, silence_transformers
from tests.engine.drafters.heads import scored_places
from tests.engine.drafters.models import pack
from tests.engine.tiny import SIZES, VOCABULARY, assert_drafters_agree, in_memory, tiny_engine, tiny_tokenizer

_SIZES = SIZES | {
    "head_dim": 16, "global_head_dim": 32, "sliding_window": 12, "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
ORDERED = {"use_ordered_embeddings": True, "num_centroids": 26, "centroid_intermediate_top_k": 6}


@pytest.fixture(autouse=True)
def _assistants_without_layers_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers 5.23 cannot create its own assistant class: its configuration requires a layer that stores."""
    modes = Gemma4TextConfig.kv_sharing_modes

    def of(self: Gemma4TextConfig) -> Any:
        count = self.num_hidden_layers
        return ["reuse"] * count if self.num_kv_shared_layers == count else modes.fget(self)

    monkeypatch.setattr(Gemma4TextConfig, "kv_sharing_modes", property(of))


def target_model(hidden: int = 32) -> LoadedModel:
    silence_transformers()
    embedded = {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": VOCABULARY}
    config = Gemma4TextConfig(**_SIZES, **embedded, hidden_size=hidden, intermediate_size=64, num_kv_shared_layers=2)
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(config).float().eval().requires_grad_(False)
    for name, weight in network.named_parameters():
        if weight.ndim > 1:
            weight.normal_(0.0, 2.0 if "embed_tokens.weight" in name else 0.2)
    return in_memory(network, "gemma")


def packed_model(folder: Path) -> PackedModel:
    """The target, quantised to 8 bits."""
    target_model().model.save_pretrained(folder / "target")
    tiny_tokenizer().save_pretrained(folder / "target")
    return pack(folder / "target", folder)


def write_assistant(folder: Path, **more: Any) -> Path:
    embedded = dict.fromkeys(("hidden_size_per_layer_input", "vocab_size_per_layer_input"), 0)
    text = Gemma4TextConfig(**_SIZES, **embedded, hidden_size=16, intermediate_size=32, num_kv_shared_layers=4)
    torch.manual_seed(1)
    config = Gemma4AssistantConfig(text_config=text, **{"backbone_hidden_size": 32} | more)
    network = Gemma4AssistantForCausalLM(config).float()
    for weight in network.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, 0.0, 0.3)
    if network.masked_embedding is not None:
        network.masked_embedding.token_ordering.copy_(torch.randperm(VOCABULARY))
    network.save_pretrained(folder)
    return folder


def as_unified(folder: Path) -> None:
    """Name the types of Gemma 4 12B, whose configuration states nothing about embeddings per layer."""
    config = json.loads((folder / "config.json").read_text())
    text = {key: value for key, value in config["text_config"].items() if "per_layer_input" not in key}
    config |= {"model_type": "gemma4_unified_assistant", "text_config": text | {"model_type": "gemma4_unified_text"}}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("kind", ["plain", "ordered", "unified"])
@torch.inference_mode()
def test_every_logit_is_that_of_transformers(kind: str, tmp_path: Path) -> None:
    folder = write_assistant(tmp_path / "a", **ORDERED if kind == "ordered" else {})
    if kind == "unified":
        as_unified(folder)
    assert find_published(str(folder), ModelStore(tmp_path / "models"), ignore_progress) == folder
    target, plain = target_model(), target_model().model
    loaded = load_published(folder, target)
    assistant = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    backend = TransformersBackend(target.model, 2, 128, 17, loaded.taps)
    for text, drafted, scores in scored_places(loaded, backend, chain(4), [11, 12, 13, 14]):
        *before, last = text
        out = plain(input_ids=torch.tensor([before]), output_hidden_states=True, return_shared_kv_states=True)
        state = out.hidden_states[-1][:, -1:]
        for token in (last, *drafted):
            step = assistant(
                inputs_embeds=torch.cat([plain.get_input_embeddings()(torch.tensor([[token]])), state], -1),
                position_ids=torch.tensor([[len(before)]]),
                shared_kv_states=out.shared_kv_states,
            )
            state, expected = step.last_hidden_state, step.logits[0, 0]
        scored = scores > torch.finfo(torch.float32).min
        assert int(scored.sum()) == (60 if kind == "ordered" else VOCABULARY)
        torch.testing.assert_close(scores[scored], expected[scored], rtol=1e-3, atol=1e-3)
        assert int(scores.argmax()) == int(expected.argmax())


@torch.inference_mode()
def test_next_to_packed_weights_it_scores_as_next_to_plain_ones(tmp_path: Path) -> None:
    """The two differ by what 8 bits leave of weights and activations."""
    folder, packed = write_assistant(tmp_path / "a"), packed_model(tmp_path)
    plain, found = load_dequantized(packed, tmp_path / "target", ignore_progress), []
    for target, options in ((plain, {}), (packed, {}), (packed, {"cache_type": "q8"})):
        loaded = load_published(folder, target)
        backend = import_module(target.backend).build(target, 2, 128, 17, loaded.taps, **options)
        found.append(torch.stack([scores for *_, scores in scored_places(loaded, backend, chain(3), [11, 12, 13])]))
    expected, *ours = (each - each.mean(1, keepdim=True) for each in found)
    assert all(torch.cosine_similarity(each, expected).min() > 0.99 for each in ours)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_replies_are_the_same_with_an_assistant(packed: bool, tmp_path: Path) -> None:
    target = packed_model(tmp_path) if packed else target_model()
    head = load_published(write_assistant(tmp_path / "a", **ORDERED), target)
    with tiny_engine(target, head=head) as engine:
        assert_drafters_agree(engine, ("head", "combined"), gamma=None)


def test_an_assistant_of_another_target_is_refused(tmp_path: Path) -> None:
    folder = write_assistant(tmp_path / "a", backbone_hidden_size=48)
    with pytest.raises(EngineError, match="was made for a target of hidden size 48 and 260 tokens, and gemma has 32"):
        load_published(folder, target_model())
    (folder / "model.safetensors").write_bytes(b"no")
    with pytest.raises(EngineError, match="is damaged or holds more"):
        load_published(folder, target_model(hidden=48))
