"""Settings that files state about a model: any value of any key ends in a reply or in one sentence that names it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from specchat.engine import EngineConfig, EngineError
from specchat.engine.models.checkpoint import weight_files
from specchat.engine.progress import ignore_progress
from specchat.engine.worker.obtain import obtain_model
from tests.engine.gguf_files import write_gguf, write_source
from tests.engine.tiny import ask, ids_of, started
from tests.tiny_model import write_tiny_model

CPU = torch.device("cpu")
VALUES: dict[GGUFValueType, st.SearchStrategy[Any]] = {
    GGUFValueType.UINT32: st.sampled_from([0, 1, 2, 3, 7, 32, 2**31, 2**32 - 1]) | st.integers(0, 2**32 - 1),
    GGUFValueType.INT64: st.sampled_from([-1, 0, 1, 9 * 10**12]) | st.integers(-(2**63), 2**63 - 1),
    GGUFValueType.FLOAT32: st.floats(width=32),
    GGUFValueType.BOOL: st.booleans(),
    GGUFValueType.STRING: st.sampled_from(["", "yarn", "linear", "none", "gpt2", "llama"]) | st.text(max_size=9),
    GGUFValueType.ARRAY: st.lists(st.integers(0, 9), min_size=1, max_size=4)
    | st.lists(st.text(max_size=3), min_size=1, max_size=3)
    | st.lists(st.booleans(), min_size=1, max_size=3),
}  # fmt: skip
CONFIG = (
    st.none() | st.booleans() | st.integers() | st.sampled_from([-1, 0, 1, 3, 9 * 10**12]) | st.floats()
    | st.text(max_size=5) | st.lists(st.integers(0, 9), max_size=3) | st.dictionaries(st.text(max_size=3), st.none())
)  # fmt: skip
SOON = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


class Template:
    """The content of a GGUF file, of which one key is changed."""

    def __init__(self, file: Path) -> None:
        self._reader = GGUFReader(file)
        fields = {name: field for name, field in self._reader.fields.items() if not name.startswith("GGUF.")}
        self.values = {name: (field.contents(), field.types) for name, field in fields.items()}

    def write(self, file: Path, key: str, value: Any, kind: GGUFValueType) -> Path:
        writer = GGUFWriter(file, "llama")
        for name, (content, kinds) in (self.values | {key: (value, [kind])}).items():
            element = kinds[1] if len(kinds) > 1 else None
            writer.kv_data[0].pop(name, None)
            writer.add_key_value(name, content, kinds[0], element)
        for tensor in self._reader.tensors:
            writer.add_tensor(tensor.name, tensor.data.copy(), raw_dtype=tensor.tensor_type)
        for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
            write()
        writer.close()
        return file


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    folder = tmp_path_factory.mktemp("settings")
    return Template(write_gguf("llama", write_source("llama", folder / "model"), folder / "model.gguf"))


def edit(file: Path, **changes: Any) -> None:
    """Change keys of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def reply(folder: Path, models: Path, quantize: str) -> list[int]:
    """Tokens that a model replies."""
    with started(EngineConfig(str(folder), models, quantize=quantize, context=64)) as engine:
        return ids_of(engine.stream(ask("the fox", max_tokens=8, drafter="none")))


def loaded(spec: Path, models: Path, **about: Any) -> Any:
    return obtain_model(str(spec), EngineConfig(str(spec), models, **about), CPU, ignore_progress).model


def check_ends(spec: Path, home: Path) -> None:
    """Check that a model answers, or is refused by one sentence that names it."""
    said = str(spec)
    try:
        with started(EngineConfig(str(spec), home, context=64, slots=1)) as engine:
            events = list(engine.stream(ask("Hi", max_tokens=2, drafter="none")))
            said += str(events)
    except EngineError as error:
        said = str(error)
        events = []
    assert "internal error" not in said
    assert events or ("\n" not in said and str(spec) in said)


@pytest.mark.slow
@SOON
@given(st.data())
def test_any_value_of_any_key_of_a_gguf_file(template: Template, tmp_path: Path, data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(template.values)))
    kind = data.draw(st.sampled_from(sorted(VALUES)))
    file = tmp_path / "changed.gguf"
    template.write(file, key, data.draw(VALUES[kind]), kind)
    check_ends(file, tmp_path / "models")


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("general.alignment", 0, GGUFValueType.UINT32),
        ("general.alignment", 33, GGUFValueType.UINT32),
        ("general.alignment", "32", GGUFValueType.STRING),
        ("llama.attention.head_count", 0, GGUFValueType.UINT32),
        ("llama.attention.head_count", "many", GGUFValueType.STRING),
        ("llama.block_count", [2, 2], GGUFValueType.ARRAY),
        ("llama.block_count", 2**31, GGUFValueType.UINT32),
        ("llama.embedding_length", True, GGUFValueType.BOOL),
        ("llama.rope.freq_base", "x", GGUFValueType.STRING),
        ("llama.attention.layer_norm_rms_epsilon", float("nan"), GGUFValueType.FLOAT32),
        ("tokenizer.ggml.tokens", [1, 2], GGUFValueType.ARRAY),
        ("tokenizer.ggml.scores", ["a"], GGUFValueType.ARRAY),
        ("tokenizer.ggml.merges", [1, 2], GGUFValueType.ARRAY),
        ("tokenizer.ggml.pre", 5, GGUFValueType.UINT32),
        ("tokenizer.ggml.add_bos_token", "yes", GGUFValueType.STRING),
        ("tokenizer.ggml.eos_token_id", "</s>", GGUFValueType.STRING),
        ("tokenizer.chat_template", 3, GGUFValueType.UINT32),
    ],
)
def test_a_wrong_type_or_value_is_named(
    template: Template, tmp_path: Path, key: str, value: Any, kind: GGUFValueType
) -> None:
    file = template.write(tmp_path / "changed.gguf", key, value, kind)
    with pytest.raises(EngineError, match=f"changed.gguf states {key} .*, which is not "):
        loaded(file, tmp_path / "models")


def test_a_list_of_lists_is_named(template: Template, tmp_path: Path) -> None:
    file = template.write(tmp_path / "changed.gguf", "general.deep", [[[1]]], GGUFValueType.ARRAY)
    with pytest.raises(EngineError, match=r"states general\.deep as a list of lists"):
        loaded(file, tmp_path / "models")


@pytest.mark.slow
@SOON
@given(st.data())
def test_any_value_of_any_key_of_a_configuration(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "model"
    if not folder.is_dir():
        write_tiny_model(folder)
    file = folder / "config.json"
    original = file.read_text()
    config = json.loads(original)
    key = data.draw(st.sampled_from(sorted(config)))
    try:
        file.write_text(json.dumps(config | {key: data.draw(CONFIG)}))
        check_ends(folder, tmp_path / "models")
    finally:
        file.write_text(original)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", 9 * 10**12), ("num_attention_heads", "many"), ("num_hidden_layers", "2"), ("hidden_size", 0),
        ("max_position_embeddings", 0),
        ("torch_dtype", 3), ("architectures", "LlamaForCausalLM"), ("rope_parameters", [1]), ("rms_norm_eps", "1e-5"),
        ("rope_parameters", {"rope_type": 3}), ("rope_parameters", {"rope_type": "spiral", "rope_theta": 1e4}),
        ("quantization_config", "int4"), ("eos_token_id", "</s>"), ("tie_word_embeddings", "yes"),
    ],
)  # fmt: skip
def test_a_wrong_value_of_a_configuration_is_named(
    tiny_model: Callable[..., Path], tmp_path: Path, key: str, value: Any
) -> None:
    folder = tiny_model()
    edit(folder / "config.json", **{key: value})
    named = "rope_type" if isinstance(value, dict) else key
    with pytest.raises(EngineError, match=f"config.json states {named} "):
        loaded(folder, tmp_path / "models")


@pytest.mark.parametrize("quantize", ["none", "q8"])
def test_an_output_layer_of_its_own_counts_where_the_configuration_ties_it(
    tiny_model: Callable[..., Path], tmp_path: Path, quantize: str
) -> None:
    tied, own = tiny_model(), tiny_model()
    weights = load_file(own / "model.safetensors")
    output = torch.roll(weights["model.embed_tokens.weight"], 7, 0).contiguous()
    save_file(weights | {"lm_head.weight": output}, own / "model.safetensors", {"format": "pt"})
    untied = Path(shutil.copytree(own, tmp_path / "untied"))
    edit(untied / "config.json", tie_word_embeddings=False)
    replies = [reply(folder, tmp_path / "models", quantize) for folder in (tied, own, untied)]
    assert replies[1] == replies[2] != replies[0]


def biased(folder: Path, *parts: str, **config: Any) -> Path:
    """A model folder with random biases for some of its attention's matrices, and zeros for the others named."""
    weights, draws = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(1)
    for name in [name for name in weights if "self_attn" in name]:
        bias = torch.randn(len(weights[name]), generator=draws) * ("o_proj" not in name)
        if any(part in name for part in parts):
            weights[name.replace(".weight", ".bias")] = bias
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    edit(folder / "config.json", **config)
    return folder


@pytest.mark.parametrize("quantize", ["none", "q8"])
def test_biases_of_a_folder_count_whether_or_not_all_are_there_and_stated(
    tiny_model: Callable[..., Path], tmp_path: Path, quantize: str
) -> None:
    some = ("q_proj", "k_proj", "v_proj")
    folders = (
        biased(tiny_model(), *some, "o_proj", attention_bias=True), biased(tiny_model(), *some, attention_bias=True),
        biased(tiny_model(), *some), tiny_model(),
    )  # fmt: skip
    replies = [reply(folder, tmp_path / "models", quantize) for folder in folders]
    assert replies[0] == replies[1] == replies[2] != replies[3]


def test_biases_that_the_network_has_no_place_for_are_named(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = biased(tiny_model(), "q_proj", model_type="mistral", architectures=["MistralForCausalLM"])
    with pytest.raises(EngineError, match=r"has model\.layers\.0\.self_attn\.q_proj\.bias, for which a network of"):
        loaded(folder, tmp_path / "models", quantize="none")


def test_heads_of_a_folder_need_not_divide_the_hidden_size(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_model(num_attention_heads=2, num_key_value_heads=1, head_dim=8)
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if "q_proj" in name:
            weights[name] = torch.cat([weight, weight[:8]])
        elif "o_proj" in name:
            weights[name] = torch.cat([weight, weight[:, :8]], 1)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    edit(folder / "config.json", num_attention_heads=3)
    for quantize in ("none", "q8"):
        assert loaded(folder, tmp_path / "models", quantize=quantize).vocab_size == 320


def test_a_prompt_with_a_token_beyond_the_last_row_is_refused(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_model()
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    like, size = content["added_tokens"][-1], len(content["model"]["vocab"])
    names = [*(f"<|{number}|>" for number in range(size, 320)), "<|extra|>"]
    content["added_tokens"] += [like | {"id": size + number, "content": name} for number, name in enumerate(names)]
    file.write_text(json.dumps(content))
    for quantize in ("none", "q8"):
        with started(EngineConfig(str(folder), tmp_path / "models", quantize=quantize, context=64)) as engine:
            *_, last = engine.stream(ask("a <|extra|> b", max_tokens=1))
            assert "'<|extra|>' (320), and the model has 320 tokens" in str(last)


def test_an_index_names_no_file_outside_of_its_folder(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_model()
    secret = tmp_path / "secret.safetensors"
    (folder / "model.safetensors").rename(secret)
    (folder / "link.safetensors").symlink_to(secret)
    index = folder / "model.safetensors.index.json"
    for name in (str(secret), f"../{secret.name}", "x/../../secret.safetensors", "link.safetensors"):
        index.write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(EngineError, match="names a file outside of its folder"):
            weight_files(folder)


def test_links_of_the_hub_s_cache_are_followed(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    cached = tmp_path / "models--a--b"
    (cached / "blobs").mkdir(parents=True)
    (cached / "snapshots").mkdir()
    folder = tiny_model().rename(cached / "snapshots" / "0")
    (folder / "model.safetensors").rename(cached / "blobs" / "1")
    (folder / "part.safetensors").symlink_to("../../blobs/1")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "part.safetensors"}}))
    assert weight_files(folder) == [folder / "part.safetensors"]
