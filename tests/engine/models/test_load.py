"""Loading: what a loaded model says about itself, and every folder that is refused."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specchat.engine.device import device
from specchat.engine.errors import EngineError
from specchat.engine.models.checkpoint import display_name
from specchat.engine.models.load import LoadedModel, load_model
from specchat.engine.progress import ignore_progress

CPU = torch.device("cpu")


def load(folder: Path, dtype: torch.dtype = torch.float32) -> LoadedModel:
    return load_model(folder, CPU, dtype, ignore_progress)


@pytest.fixture
def folder(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model()


def edit(file: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None removes one."""
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def test_a_loaded_model(folder: Path) -> None:
    loaded = load(folder)
    assert (loaded.name, loaded.context, loaded.vocab_size, loaded.eos_ids) == (folder.name, 256, 320, {0, 2})
    assert loaded.tokenizer.chat_template
    assert loaded.weight_bytes == 4 * sum(weight.numel() for weight in load_file(folder / "model.safetensors").values())
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert loaded.model(torch.tensor([[5, 6, 7]])).logits.shape == (1, 3, 320)


def test_every_stated_end_token_counts(folder: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id=[5, 6])
    edit(folder / "config.json", eos_token_id=7)
    assert load(folder).eos_ids == {0, 2, 5, 6, 7}  # <|endoftext|> too


@pytest.mark.parametrize("field", ["tie_word_embeddings", "attention_bias", "quantization_config"])
def test_null_is_as_good_as_nothing(folder: Path, field: str) -> None:
    expected = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {field: None}))
    network = load(folder).model
    assert torch.equal(network.get_output_embeddings().weight, expected)


def test_an_output_layer_that_is_neither_stated_nor_stored_is_the_embedding(folder: Path) -> None:
    edit(folder / "config.json", tie_word_embeddings=None)
    network = load(folder).model
    assert network.get_output_embeddings().weight is network.get_input_embeddings().weight
    edit(folder / "config.json", tie_word_embeddings=False)
    refused(folder, r"lacks weights \(lm_head.weight\)")


def test_a_template_is_found_wherever_a_folder_keeps_it(tiny_model: Callable[..., Path]) -> None:
    folder = tiny_model(chat_template=None)
    assert not load(folder).tokenizer.chat_template
    for file in ("processor_config.json", "chat_template.json"):
        (folder / file).write_text(json.dumps({"chat_template": f"{{{{ '{file}' }}}}"}))
        assert load(folder).tokenizer.chat_template == f"{{{{ '{file}' }}}}"
    edit(folder / "tokenizer_config.json", chat_template=[{"name": "tool_use", "template": "{{ 'tools' }}"}])
    assert load(folder).tokenizer.chat_template == "{{ 'tools' }}"


def test_progress_and_silence(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said: list[tuple[str, str, float | None]] = []
    load_model(folder, CPU, torch.float32, lambda *report: said.append(report), stage="draft")
    assert said[0] == ("draft", f"Loading {folder.name}", 0.0)
    assert said[-1] == ("draft", f"Loaded {folder.name}", 1.0)
    assert len(said) > 5
    assert capfd.readouterr() == ("", "")


def test_weights_in_several_files(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    parts = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, part in parts.items():
        save_file({name: weights[name] for name in part}, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert load(folder).vocab_size == 320
    (folder / "b.safetensors").unlink()
    refused(folder, "lacks b.safetensors, so the model is not complete")
    edit(folder / "model.safetensors.index.json", weight_map=[])
    refused(folder, "names no weights")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("models/smollm2-135m", "smollm2-135m"), ("models/Qwen--Qwen3-8B", "Qwen3-8B"),
        ("models/tiny-0123456789abcdef", "tiny"), ("hub/models--Qwen--Qwen3-8B/snapshots/0f3a", "Qwen3-8B"),
    ],
)  # fmt: skip
def test_display_name(path: str, name: str) -> None:
    assert display_name(Path(path)) == name


# Folders that are refused.


def refused(folder: Path, sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_no_folder_and_no_model(tmp_path: Path) -> None:
    refused(tmp_path / "absent", "there is no folder")
    refused(tmp_path, "is not a model: it has no config.json")
    (tmp_path / "adapter_config.json").write_text("{}")
    refused(tmp_path, "holds an adapter")


@pytest.mark.parametrize("content", ["", "{", "[]", "\udcff"])
def test_a_broken_config(folder: Path, content: str) -> None:
    (folder / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    refused(folder, r"config.json (cannot be read|holds no JSON object)")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_key_value_heads": 3}, "states num_attention_heads 4, which is no multiple of num_key_value_heads 3"),
        ({"intermediate_size": 96}, r"mlp.down_proj.weight of shape \[32, 64\], .* config.json asks for \[32, 96\]"),
        (
            {"model_type": "xlama"},
            "of type 'xlama', which the installed transformers does not know: upgrade .* another server",
        ),
        ({"model_type": None}, "without a model_type"),
    ],
)
def test_a_wrong_config(folder: Path, changes: dict[str, Any], sentence: str) -> None:
    edit(folder / "config.json", **changes)
    refused(folder, sentence)


def test_no_weights_and_pickled_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    refused(folder, "has no weights")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04")
    refused(folder, "has pickled weights only")


@pytest.mark.parametrize("keep", [0, 4, 100, 2000, -1])
def test_truncated_safetensors(folder: Path, keep: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    refused(folder, r"model.safetensors is damaged or cut short \(")


def test_corrupted_safetensors(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    file.write_bytes(content[:8] + b"#" + content[9:])
    refused(folder, r"is damaged or cut short \(invalid JSON in header")
    file.write_bytes(content + b"more")
    refused(folder, r"is damaged or cut short \(incomplete metadata, file not fully covered\): fetch the model again")
    file.write_bytes(struct.pack("<Q", 1 << 62) + content[8:])
    refused(folder, r"is damaged or cut short \(header too large\)")


def test_weights_that_are_missing_are_not_made_up(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    for name in ("model.layers.0.mlp.up_proj.weight", "model.norm.weight"):
        del weights[name]
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        refused(folder, r"lacks weights \(model.layers.0.mlp.up_proj.weight")


def test_a_bias_without_a_place_is_refused_but_in_a_layer_that_predicts_further_tokens(folder: Path) -> None:
    edit(folder / "config.json", model_type="qwen3", head_dim=8, architectures=["Qwen3ForCausalLM"])
    weights = load_file(folder / "model.safetensors")
    norms = {f"model.layers.{i}.self_attn.{part}_norm.weight": torch.ones(8) for i in (0, 1) for part in "qk"}
    for layer in (2, 1):
        weights |= norms | {f"model.layers.{layer}.mlp.up_proj.bias": torch.ones(64)}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        if layer == 2:
            load(folder)
    refused(folder, "has model.layers.1.mlp.up_proj.bias, for which a network of type qwen3 has no place")


def test_code_in_the_folder_is_never_run(folder: Path) -> None:
    code = "import pathlib\npathlib.Path(__file__).with_name('was-run').touch()\n"
    for name in ("configuration_x.py", "modeling_x.py", "tokenization_x.py"):
        (folder / name).write_text(code)
    references = {"AutoConfig": "configuration_x.X", "AutoModelForCausalLM": "modeling_x.X"}
    edit(folder / "config.json", auto_map=references)
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["tokenization_x.X", "tokenization_x.X"]})
    load(folder)  # transformers has its own network for a llama
    edit(folder / "config.json", model_type="xlama")
    refused(folder, r"brings its own code \(configuration_x.X\), which specchat never runs")
    assert not list(folder.rglob("was-run"))


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            {"model_type": "longt5", "architectures": ["LongT5ForConditionalGeneration"]},
            "is a longt5 model, which does",
        ),
        ({"model_type": "t5", "architectures": ["T5EncoderModel"]}, "is a T5EncoderModel, which writes no text"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "is a BertForMaskedLM, which does"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "is a LlamaForSequenceClassification"),
        ({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, "whose cache is not indexed by"),
        ({"model_type": "rwkv", "architectures": ["RwkvForCausalLM"]}, "whose layers keep a recurrent state"),
        ({"model_type": "xlstm", "architectures": ["xLSTMForCausalLM"]}, "whose layers keep a recurrent state"),
        (
            {"model_type": "deepseek_v4", "architectures": ["DeepseekV4ForCausalLM"]},
            r"whose layers \(compressed_sparse_attention, heavily_compressed_attention\) do not store plain keys",
        ),
        (
            {"model_type": "qwen4_exp", "architectures": ["Qwen4ExpForConditionalGeneration"]},
            r"whose layers \(indexed_attention\) do not store plain keys .* another server",
        ),
        (
            {"model_type": "glm5_next", "architectures": ["Glm5NextForConditionalGeneration"]},
            r"whose layers \(indexed_attention\) do not store plain keys .* another server",
        ),
        (
            {"model_type": "diffusion_gemma", "architectures": ["DiffusionGemmaForBlockDiffusion"]},
            "is a DiffusionGemmaForBlockDiffusion, which does not continue text",
        ),
        ({"model_type": "bloom", "architectures": ["BloomForCausalLM"]}, "whose cache is not indexed by"),
        ({"quantization_config": {"quant_method": "gptq"}}, "is quantised with gptq"),
    ],
)
def test_networks_that_cannot_run_here(folder: Path, config: dict[str, Any], sentence: str) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"} | config))
    refused(folder, sentence)


def test_no_tokenizer_and_a_broken_one(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0"')
    refused(folder, r"tokenizer\.json cannot be read")
    (folder / "tokenizer.json").unlink()
    refused(folder, "has no tokenizer")


def test_a_tokenizer_that_is_not_fast(folder: Path) -> None:
    """A tokenizer that works character by character, in Python, as some models have."""
    shutil.copy(folder / "tokenizer.json", folder / "vocab.json")
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps({chr(97 + number): number for number in range(26)}))
    edit(folder / "tokenizer_config.json", tokenizer_class="CanineTokenizer")
    refused(folder, "has no fast tokenizer")


def test_too_little_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "available_memory", lambda _: 50_000)
    refused(folder, r"tiny-\d+ in float32 needs \d+ kB of memory and this machine has 50 kB free")
