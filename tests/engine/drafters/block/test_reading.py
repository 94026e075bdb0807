"""Block drafters on disk: GGUF files say what folders say, and what does not fit is refused by name."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from torch import Tensor

from specchat.engine import EngineConfig
from specchat.engine.drafters.block.reading import load_block, read_block
from specchat.engine.drafters.published.find import find_published, kind_of
from specchat.engine.errors import EngineError
from specchat.engine.models import downloads, is_installed
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import ignore_progress
from specchat.engine.registry import BLOCK
from specchat.engine.worker.assembly import assemble
from tests.engine.block_drafters import HEADS, INNER, KEY_HEADS, KINDS, MASK, SIZE, Made
from tests.engine.published_heads import HIDDEN, eagle_3, llama, write
from tests.engine.tiny import VOCABULARY
from tests.hub import Hub, serving, use
from tests.tiny_model import write_tiny_model

_IN_GGUF = {
    "fc": "fc", "hidden_norm": "enc.output_norm", "norm": "output_norm", "embed_tokens": "token_embd",
    "lm_head": "output", "markov_head.markov_w1": "markov_w1", "markov_head.markov_w2": "markov_w2",
    "confidence_head.proj": "conf_proj", "candidate_selector.hidden_projection": "selector_hidden",
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
}  # fmt: skip
_IN_LAYERS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "attention_conv.base_kernel": "attn_conv_base",
    "attention_conv.kernel_projection": "attn_conv_proj", "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp_conv.kernel_projection": "ffn_conv_proj",
}  # fmt: skip


def write_gguf(file: Path, kind: str, architecture: str = "dflash", **more: Tensor) -> Path:
    """A drafter as llama.cpp's converter writes it: depths are one more than layers, halves of heads are paired."""
    config, tensors = KINDS[kind]()
    nested, writer = config.get("dflash_config", {}), GGUFWriter(file, architecture)
    stated: Mapping[str, Any] = {**config, **nested}
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_key_length(SIZE)
    writer.add_value_length(SIZE)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1000.0)
    writer.add_context_length(512)
    writer.add_rope_dimension_count(int(SIZE * config.get("partial_rotary_factor", 1)))
    writer.add_mask_token_id(MASK)
    writer.add_uint32(f"{architecture}.block_size", stated["block_size"])
    writer.add_array(f"{architecture}.target_layers", [layer + 1 for layer in stated["target_layer_ids"]])
    if "sliding_window" in config:
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([each == "sliding_attention" for each in config["layer_types"]])
    for name in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"):
        if name in nested:
            writer.add_uint32(f"{architecture}.{name}", nested[name])
    if "final_logit_softcapping" in nested:
        writer.add_final_logit_softcapping(nested["final_logit_softcapping"])
        writer.add_logit_scale(nested["output_multiplier"])
        writer.add_embedding_scale(nested["input_embedding_scale"])
    for name, tensor in tensors.items():
        writer.add_tensor(_name_in_gguf(name), _as_converted(config, name, tensor).numpy())
    for name, tensor in more.items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _name_in_gguf(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if name in _IN_GGUF:
        return _IN_GGUF[name]
    if stem in _IN_GGUF:
        return f"{_IN_GGUF[stem]}.{suffix}"
    found = re.fullmatch(r"layers\.(\d+)\.(.+)", name)
    assert found
    if found[2] in _IN_LAYERS:
        return f"blk.{found[1]}.{_IN_LAYERS[found[2]]}"
    part, _, suffix = found[2].rpartition(".")
    return f"blk.{found[1]}.{_IN_LAYERS[part]}.{suffix}"


def _as_converted(config: Mapping[str, Any], name: str, tensor: Tensor) -> Tensor:
    """Of interleaved rotary embeddings the even rows of each head come before the odd ones."""
    if config.get("rope_is_neox_style", True) or not re.search(r"[qk]_(proj|norm)", name):
        return tensor
    heads = tensor.view(-1, SIZE, *tensor.shape[1:])
    return torch.cat([heads[:, ::2], heads[:, 1::2]], 1).reshape(tensor.shape).contiguous()


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [("dflash", "dflash"), ("dflash 2", "dflash"), ("dspark", "dspark"), ("dspark interleaved", "dflash")],
)
def test_a_gguf_file_says_what_the_folder_says(kind: str, architecture: str, tmp_path: Path) -> None:
    target = llama()
    file = write_gguf(tmp_path / "drafter.gguf", kind, architecture)
    found = find_published(str(file), ModelStore(tmp_path / "models"), ignore_progress)
    assert found == file
    assert kind_of(found) is BLOCK
    (network, vocabulary), (plain, _) = (
        read_block(each, target) for each in (file, write(tmp_path / "folder", *KINDS[kind]()))
    )
    assert network.shape == plain.shape
    assert vocabulary.tolist() == list(range(VOCABULARY))
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(network.state_dict()[name], tensor)


def _without(kind: str, *names: str) -> Made:
    config, tensors = KINDS[kind]()
    return config, {name: tensor for name, tensor in tensors.items() if name not in names}


def _with(kind: str, nested: Mapping[str, Any] | None = None, **stated: Any) -> Made:
    config, tensors = KINDS[kind]()
    if nested:
        config["dflash_config"] = config["dflash_config"] | nested
    return config | stated, tensors


BAD: dict[str, tuple[Made, str]] = {
    "another hidden size": (_with("dspark", hidden_size=64), "hidden size 64, and tiny has 32"),
    "another hidden size of the target": (_with("dspark", target_hidden_size=99), "hidden size 99, and tiny has 32"),
    "another vocabulary": (_with("dspark", vocab_size=32000), "vocabulary of 32000 tokens, and tiny has 260"),
    "a mask token outside": (_with("dspark", mask_token_id=260), "mask token 260, which is none of the 260 of tiny"),
    "no mask token": (_with("dflash", {"mask_token_id": None}), "does not state 'mask_token_id'"),
    "a deeper target": (_with("dspark", target_layer_ids=[1, 9, 30]), "layers 1, 9, 30 of its target, and tiny has 8"),
    "a layer before the first": (_with("dspark", target_layer_ids=[-2, 1, 2]), "layers -2, 1, 2"),
    "another number of states": (_with("dspark", target_layer_ids=[1, 2]), r"fc.weight of shape \[32, 96\]"),
    "no block size": (_with("dspark", block_size=None), "does not state 'block_size'"),
    "a block of one": (_with("dspark", block_size=1), "block size of 1, which is not from 2 to 64"),
    "an endless block": (_with("dspark", block_size=4096), "block size of 4096"),
    "a block that is no number": (_with("dspark", block_size="seven"), "a value that cannot be used .invalid literal"),
    "a missing tensor": (_without("dflash 2", "layers.1.mlp_conv.base_kernel"), "lacks the tensor layers.1.mlp_conv"),
    "a missing head": (_without("dspark", "markov_head.markov_w1.weight"), "lacks the tensor markov_head.markov_w1"),
    "no vocabulary map": (_without("speculators dflash", "d2t"), "lacks the tensor d2t"),
    "causal full attention": (_with("dspark", is_causal=True), "stated to be causal and has layers of full attention"),
    "causal in the nested part": (_with("dflash", {"causal": True}), "stated to be causal and has layers of full"),
    "other layer types": (_with("dspark", layer_types=["full_attention"] * 3), "states 3 layer types for 2 layers"),
    "an unknown layer type": (_with("dspark", layer_types=["conv"] * 2), "type 'conv', which is not supported"),
    "no window": (_with("dflash 2", sliding_window=None), "sliding attention and states no sliding_window"),
    "another Markov head": (_with("dspark", markov_head_type="rnn"), "Markov head of the type 'rnn'"),
    "another activation": (_with("dspark", hidden_act="relu"), "activation 'relu'"),
    "quantised weights": (_with("dspark", quantization_config={"quant_algo": "NVFP4"}), "quantised weights"),
    "quantised weights that only their names tell": (
        (KINDS["dspark"]()[0], KINDS["dspark"]()[1] | {"layers.0.mlp.up_proj.weight_scale": torch.ones(1)}),
        "quantised weights",
    ),
    "no selector size": (_with("dflash 2", {"selector_top_k": None}), "no selector_rank and selector_top_k"),
    "no group size": (_with("dflash 2", {"conv_group_size": None}), "no conv_kernel_size and conv_group_size"),
    "a tensor too many": (
        (KINDS["dflash"]()[0], KINDS["dflash"]()[1] | {"layer_fusion": torch.ones(2, 3)}),
        "has a tensor layer_fusion that no head of its kind has",
    ),
    "layers of Gemma 4 of two types": (
        _with("dspark gemma", layer_types=["full_attention", "sliding_attention"], sliding_window=9), "of two types"
    ),
    "layers of Gemma 4 without rotary settings": (_with("dspark gemma", rope_parameters=None), "not state 'rope_para"),
    "a gate that is not stated": (_with("dspark gated", markov_head_type="vanilla"), "head of the type 'vanilla'"),
    "rotary embeddings that change": (
        _with("dspark", rope_parameters={"rope_type": "dynamic", "factor": 2.0}), "type 'dynamic', which are not supp"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("made", "words"), BAD.values(), ids=BAD.keys())
def test_what_does_not_fit_is_refused_by_name(made: Made, words: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "strange", *made)
    found = find_published(str(folder), ModelStore(tmp_path / "models"), ignore_progress)
    assert found == folder
    assert kind_of(found) is BLOCK
    with pytest.raises(EngineError, match=words) as caught:
        load_block(folder, llama())
    assert str(caught.value).startswith(f"the block drafter {folder} ")


def _by_type() -> Made:
    config, tensors = KINDS["speculators dflash"]()
    layer = config["transformer_layer_config"]
    rope = {"sliding_attention": layer["rope_parameters"], "full_attention": {"rope_theta": 1e6}}
    return config | {"transformer_layer_config": layer | {"rope_parameters": rope}}, tensors


FORMS: dict[str, tuple[str, Made]] = {
    "fields that are null": ("dspark", _with("dspark", hidden_act=None, rms_norm_eps=None, rope_scaling=None)),
    "rotary settings by type of layer": ("speculators dflash", _by_type()),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "made"), FORMS.values(), ids=FORMS.keys())
def test_other_forms_say_the_same(kind: str, made: Made, tmp_path: Path) -> None:
    target = llama()
    expected, _ = read_block(write(tmp_path / "usual", *KINDS[kind]()), target)
    assert read_block(write(tmp_path / "other", *made), target)[0].shape == expected.shape


@pytest.mark.parametrize("kind", ["dspark", "speculators dflash"])
def test_tables_in_its_file_are_the_targets(kind: str, tmp_path: Path) -> None:
    target, (config, tensors) = llama(), KINDS[kind]()
    embedding, output = (each.weight for each in (target.model.get_input_embeddings(), target.model.lm_head))
    tables = {"embed_tokens.weight": embedding, "lm_head.weight": output[tensors.get("t2d", slice(None))]}
    read_block(write(tmp_path / "same", config, tensors | tables), target)
    for name, table in tables.items():
        folder = write(tmp_path / name, config, tensors | {name: table.flip(0)})
        with pytest.raises(EngineError, match=f"has a tensor {name} other than that of its target"):
            read_block(folder, target)


def _of_another_variant(file: Path) -> Path:
    return write_gguf(file, "dflash", layer_fusion=torch.ones(2, 3))


def _quantised_oddly(file: Path) -> Path:
    writer = GGUFWriter(file, "dflash")
    for name in ("block_count", "block_size", "embedding_length"):
        writer.add_uint32(f"dflash.{name}", 1)
    writer.add_tensor(
        "fc.weight", torch.zeros(1, 66, dtype=torch.uint8).numpy(), raw_dtype=GGMLQuantizationType.IQ2_XXS
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _of_another_kind(file: Path) -> Path:
    return write_gguf(file, "dflash", "eagle3")


BAD_FILES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "another variant": (_of_another_variant, "has a tensor layer_fusion that no head of its kind has"),
    "another kind of drafter": (_of_another_kind, "of llama.cpp's architecture eagle3, which is not supported"),
    "keys that are missing": (_quantised_oddly, "does not state dflash."),
}


@pytest.mark.parametrize(("make", "words"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_gguf_file_of_an_unknown_variant_is_refused(make: Callable[[Path], Path], words: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=words):
        load_block(make(tmp_path / "strange.gguf"), llama())


def sharded(folder: Path, made: Made) -> Path:
    """A drafter's folder with its weights in two files, as the hub's libraries save large ones."""
    config, tensors = made
    names = sorted(tensors)
    parts = {f"model-0000{i + 1}-of-00002.safetensors": names[i::2] for i in range(2)}
    for file, own in parts.items():
        write(folder, config, {name: tensors[name] for name in own}, file)
    index = {"metadata": {}, "weight_map": {name: file for file, own in parts.items() for name in own}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_weights_in_several_files_are_those_in_one(tmp_path: Path) -> None:
    target, made, store = llama(), KINDS["dspark"](), ModelStore(tmp_path / "models")
    folder = sharded(tmp_path / "sharded", made)
    assert find_published(str(folder), store, ignore_progress) == folder
    (network, _), (whole, _) = (read_block(each, target) for each in (folder, write(tmp_path / "whole", *made)))
    for name, tensor in whole.state_dict().items():
        assert torch.equal(network.state_dict()[name], tensor)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(EngineError, match=r"lacks model-00002-of-00002.safetensors, so the model is not complete"):
        find_published(str(folder), store, ignore_progress)


def test_weights_in_several_files_are_fetched_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, store = sharded(tmp_path / "there", KINDS["dspark"]()), ModelStore(tmp_path / "models")
    with serving(Hub(**{"someone/drafter": there})) as hub:
        use(hub, monkeypatch, tmp_path / "no-hub-cache")
        found = find_published("someone/drafter", store, ignore_progress)
    assert found == store.path("someone--drafter")
    assert load_block(found, llama()).name == "drafter"


FILES = ("tiny-DSpark-BF16.gguf", "tiny-DSpark-Q4_K_M.gguf", "tiny-DSpark-Q8_0.gguf")
"""Files of a repository as quantisers name them."""


def test_a_gguf_file_is_fetched_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, store = tmp_path / "there", ModelStore(tmp_path / "models")
    there.mkdir()
    for name in FILES:
        write_gguf(there / name, "dspark", "dspark")
    (there / "README.md").write_text("a drafter")
    config = EngineConfig(str(write_tiny_model(tmp_path / "target")), store.folder, draft="someone/tiny-GGUF")
    with serving(Hub(**{"someone/tiny-GGUF": there})) as hub:
        use(hub, monkeypatch, tmp_path / "no-hub-cache")
        assert downloads(config) == {"someone/tiny-GGUF": (there / FILES[2]).stat().st_size}
        for _ in range(2):
            found = find_published("someone/tiny-GGUF", store, ignore_progress)
            assert found == store.path("someone--tiny-GGUF") / FILES[2]
        assert is_installed(config)
    assert {name for name, _ in hub.asked} == {FILES[2]}
    assert kind_of(found) is BLOCK
    assert load_block(found, llama()).network.shape.markov_rank


def test_a_gguf_file_of_the_hub_that_is_no_block_drafter_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    write_gguf(there / "dflash-draft.gguf", "dflash", "qwen3")
    store = ModelStore(tmp_path / "models")
    with serving(Hub(**{"someone/tiny": there})) as hub:
        use(hub, monkeypatch, tmp_path / "no-hub-cache")
        with pytest.raises(EngineError, match=r"dflash-draft.gguf of someone/tiny is no block drafter, but .* qwen3"):
            find_published("someone/tiny", store, ignore_progress)
    assert not store.models()


def _cut_short(folder: Path) -> Path:
    file = write_gguf(folder.with_suffix(".gguf"), "dspark")
    file.write_bytes(file.read_bytes()[:300])
    return file


def _assistant(file: Path) -> Path:
    return write_gguf(file, "dspark", "gemma4-assistant", **{"nextn.pre_projection.weight": torch.ones(2, 3)})


UNFIT: dict[str, Callable[[Path], Path]] = {
    "a block drafter": lambda folder: write(folder, *_with("dspark", block_size=1)),
    "a head of a deeper target": lambda folder: write(folder, *eagle_3()),
    "a file that is cut short": _cut_short,
    "a file of something else": lambda folder: write_gguf(folder.with_suffix(".gguf"), "dspark", "eagle3"),
    "a file of an assistant": lambda folder: _assistant(folder.with_suffix(".gguf")),
}


@pytest.mark.parametrize("make", UNFIT.values(), ids=UNFIT.keys())
def test_the_target_runs_with_the_drafter_that_it_would_have_had(make: Callable[[Path], Path], tmp_path: Path) -> None:
    target = write_tiny_model(tmp_path / "target")
    folder = make(tmp_path / "strange")
    config = EngineConfig(str(target), tmp_path / "models", draft=str(folder), device="cpu", context=64, slots=1)
    made = assemble(config, ignore_progress)
    (notice,) = [notice for notice in made.notices if str(folder) in notice]
    assert notice.endswith(". Until then drafts are as without it")
    assert next(iter(made.drafters)) == "suffix"
    assert not made.parts
