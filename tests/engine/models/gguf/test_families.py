"""GGUF files of each family: configuration and weights of the model they were made from; llama.cpp agrees."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file
from torch import Tensor

from specchat.engine import EngineConfig, EngineError
from specchat.engine.kernels.packed_matrix import Format, QuantizedEmbedding, QuantizedLinear
from specchat.engine.models.convert import convert_gguf, gguf_config
from specchat.engine.models.families import family_of_gguf
from specchat.engine.models.formats import packed_folder
from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.models.load import LoadedModel, load_model, load_tokenizer
from specchat.engine.models.packed.decoder_description import OtherFamilyError
from specchat.engine.models.packed.gguf_source import GgufSource
from specchat.engine.models.packed.load import load_dequantized, load_packed
from specchat.engine.models.packed.network import Codes, load_quantized_network
from specchat.engine.models.resolve import resolve
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import ignore_progress
from specchat.engine.tools.runner import running
from specchat.engine.worker.assembly import assemble
from tests.engine.gguf_files import FILES, mtp_layer, write_gguf, write_source
from tests.engine.tiny import ask, ids_of

CPU = torch.device("cpu")
NOT_IN_THE_FILE = {
    "_name_or_path", "architectures", "dtype", "initializer_range", "mtp_num_hidden_layers", "transformers_version",
}  # fmt: skip
TEXT = [5, 90, 17, 200, 44, 120, 33, 250, 61, 7, 19, 140, 77, 201, 30, 99]
Q8_0, Q4_0 = GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_0


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The model of each family as safetensors, and next to it as FAMILY.gguf."""
    folder = tmp_path_factory.mktemp("families")
    for name in FILES:
        write_gguf(name, write_source(name, folder / name), folder / f"{name}.gguf")
    return {name: folder / name for name in FILES}


def file_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.gguf")


@cache
def loaded(folder: Path) -> LoadedModel:
    return load_model(folder, CPU, torch.float32, ignore_progress)


def source_of(file: Path) -> GgufSource:
    return GgufSource(GgufHeader.read(file), config_of(file))


def config_of(file: Path) -> Any:
    header = GgufHeader.read(file)
    family = family_of_gguf(header.architecture)
    assert family is not None
    return gguf_config(header, family)


def described(file: Path, folder: Path) -> Path:
    folder.mkdir()
    convert_gguf(file, folder, ignore_progress, weights=False)
    return folder


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], **tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, **(tolerance or {"rtol": 1e-6, "atol": 1e-6}), msg=name)


@pytest.mark.parametrize("name", FILES)
def test_configuration_and_weights(name: str, folders: dict[str, Path]) -> None:
    expected, config = loaded(folders[name]), config_of(file_of(folders[name]))
    stated: dict[str, Any] = expected.model.config.to_dict()
    found, known = config.to_dict(), set(type(config)().to_dict()) - NOT_IN_THE_FILE  # without strangers' settings
    assert {key: found[key] for key in known} == {key: stated[key] for key in known}
    source = source_of(file_of(folders[name]))
    network = source.network()
    source.fill(network, torch.float32)
    assert_same(network.state_dict(), expected.model.state_dict())
    if not name.startswith(("qwen35", "granitehybrid")):  # exp and log round
        assert source.fingerprint() == expected.fingerprint


def test_what_experts_are_chosen_by_stays_exact(folders: dict[str, Path]) -> None:
    source, name = source_of(file_of(folders["lfm2moe"])), "model.layers.1.feed_forward.expert_bias"
    network = source.network()
    source.fill(network, torch.bfloat16)
    bias = network.get_buffer(name)
    assert torch.equal(bias, loaded(folders["lfm2moe"]).model.get_buffer(name))
    assert bias.dtype == torch.float32


@pytest.mark.daily(8)
@pytest.mark.parametrize("name", [name for name in FILES if name != "gpt-oss"])  # it rounds the ends of YaRN's range
@torch.inference_mode()
def test_llama_cpp_reads_the_same(name: str, folders: dict[str, Path]) -> None:
    library = pytest.importorskip("xllamacpp")
    parameters = library.CommonParams()
    parameters.model.path = str(file_of(folders[name]))
    parameters.n_ctx, parameters.n_parallel, parameters.port, parameters.n_gpu_layers = 128, 1, 0, 0
    parameters.warmup, parameters.verbosity = False, -1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    server = library.Server(parameters)
    logits = loaded(folders[name]).model(torch.tensor([TEXT])).logits[0].log_softmax(-1)
    compared = 0
    for count in range(4, len(TEXT) + 1):
        request = {"prompt": TEXT[:count], "n_predict": 1, "temperature": 0.0, "logprobs": 5, "cache_prompt": False}
        for each in (server.handle_completions(request)["choices"][0]["logprobs"] or {}).get("content", ()):
            likeliest = each["top_logprobs"]
            assert likeliest[0]["id"] == int(logits[count - 1].argmax())
            for token in likeliest:  # its activations have 8 bits or 16
                assert abs(float(logits[count - 1, token["id"]]) - token["logprob"]) < 0.05
            compared += 1
    assert compared >= 3  # it reports no token that ends a reply


@pytest.mark.parametrize("name", ["qwen35", "gemma4"])
def test_a_converted_folder_is_the_model(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    convert_gguf(file_of(folders[name]), tmp_path, ignore_progress)
    assert_same(loaded(tmp_path).model.state_dict(), loaded(folders[name]).model.state_dict(), rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("kind", [Q8_0, Q4_0, GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q5_K])
def test_value_heads_that_are_reordered_keep_their_codes(kind: GGMLQuantizationType, tmp_path: Path) -> None:
    more = {"linear_num_value_heads": 16} if kind.name.endswith("K") else {}  # a row has a whole block
    folder = write_source("qwen35", tmp_path / "m", **more)
    file = tmp_path / "x.gguf"
    write_gguf("qwen35", folder, file, lambda place, _: kind if "ssm_out" in place else GGMLQuantizationType.F32)
    name = "model.layers.1.linear_attn.out_proj.weight"
    source = source_of(file)
    matrix, values = source.matrix(name), source.values(name, torch.float32).numpy()
    np.testing.assert_allclose(matrix.values(), values, rtol=2e-3, atol=1e-3 * abs(values).max())
    assert (matrix.format is Format.Q4) == (kind in (Q4_0, GGMLQuantizationType.Q4_K))
    places = np.arange(0, values.size, 7)
    assert np.array_equal(source.sample(name, places).numpy(), values.ravel()[places])
    if kind is Q8_0:
        original = loaded(folder).model.state_dict()[name].numpy()
        assert abs(values - original).max() < 0.01 * abs(original).max()


@pytest.mark.parametrize("name", ["qwen35", "qwen35moe"])
def test_a_multi_token_prediction_layer(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    layer = mtp_layer(folders[name])
    file = write_gguf(name, folders[name], tmp_path / "mtp.gguf", mtp=layer)
    folder = described(file, tmp_path / "described")
    assert config_of(file).mtp_num_hidden_layers == 1
    found = {key: weight.float() for key, weight in load_file(folder / "mtp.safetensors").items()}
    assert_same(found, layer, rtol=1e-2, atol=2e-3)
    source = source_of(file)
    network = source.network()
    source.fill(network, torch.float32)
    assert_same(network.state_dict(), loaded(folders[name]).model.state_dict())


@pytest.mark.usefixtures("kernels")
def test_a_model_drafts_with_the_layer_in_its_file(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders["qwen35moe"]
    file = write_gguf("qwen35moe", folder, tmp_path / "m.gguf", mtp=mtp_layer(folder))
    config = EngineConfig(str(file), tmp_path / "models", context=128, slots=1)
    with running(config) as (engine, ready, _):
        assert "head" in ready.drafters
        asked = (ask("one two one two", drafter=drafter, max_tokens=24) for drafter in ("none", "head"))
        plain, drafted = (ids_of(engine.stream(each)) for each in asked)
    assert plain == drafted
    assert not list((tmp_path / "models").rglob("model*.safetensors"))


@pytest.mark.usefixtures("kernels")
def test_a_layer_in_a_file_of_its_own(folders: dict[str, Path], tmp_path: Path) -> None:
    folder, layer = folders["qwen35"], mtp_layer(folders["qwen35"])
    alone = write_gguf("qwen35", folder, tmp_path / "mtp.gguf", mtp=layer, left_out=r"blk\.[0-3]\.")
    config = EngineConfig(str(file_of(folder)), tmp_path / "models", draft=str(alone), context=128, slots=1)
    with running(config) as (engine, ready, _):
        assert "head" in ready.drafters
        plain, drafted = (
            ids_of(engine.stream(ask("one two", drafter=each, max_tokens=9))) for each in ("none", "head")
        )
    assert plain == drafted


def test_a_layer_that_is_not_supported_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    layer = {"mtp.fc.weight": torch.zeros(64, 128)}
    file = write_gguf("nemotron_h_moe", folders["nemotron_h_moe"], tmp_path / "m.gguf", mtp=layer)
    made = assemble(EngineConfig(str(file), tmp_path / "models", context=64, slots=1), ignore_progress)
    assert any("layer of nemotron_h, a kind that is not supported" in notice for notice in made.notices)
    assert not made.parts


@pytest.mark.parametrize(
    ("left_out", "more", "sentence"),
    [
        (
            r"blk\.[0-3]\.",
            {"nextn_predict_layers": 1},
            "has a multi-token-prediction layer alone: give the file of its",
        ),
        (r"blk\.3\.attn_q\.", {}, "has queries, keys and values in one matrix: choose a file .* without --fuse-qkv"),
        (r"blk\.3\.attn_k\.", {}, r"lacks weights .model.layers.3.self_attn.k_proj.weight.: fetch the file again"),
    ],
)
def test_a_file_without_some_weights_is_refused(
    left_out: str, more: dict[str, int], sentence: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    file = write_gguf("qwen35", folders["qwen35"], tmp_path / "x.gguf", left_out=left_out, **more)
    source = source_of(file)
    with pytest.raises(EngineError, match=sentence):
        source.fill(source.network(), torch.float32)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", ["llama", "qwen35", "qwen3moe", "gemma4"])
@torch.inference_mode()
def test_a_network_with_the_codes_of_the_file(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    def kind(place: str, weight: Tensor) -> GGMLQuantizationType:
        small = "ssm_alpha" in place or "ssm_beta" in place or "conv" in place or "inp" in place
        return GGMLQuantizationType.F32 if small or weight.shape[-1] % 32 else Q8_0

    file = write_gguf(name, folders[name], tmp_path / "x.gguf", kind)
    folder = described(file, tmp_path / "described")
    found = load_quantized_network(folder, Codes("q8", GgufHeader.read(file), folder), CPU, ignore_progress)
    assert found.format == "Q8_0"
    assert found.eos_ids == {0, 2}  # <|endoftext|> too
    assert not any(parameter.is_meta for parameter in found.model.parameters())
    expected = source_of(file)
    for path, module in found.model.named_modules():
        if isinstance(module, QuantizedLinear | QuantizedEmbedding) and expected.has(f"{path}.weight"):
            assert torch.equal(module.weight, expected.values(f"{path}.weight", torch.float32)), path
    assert torch.isfinite(found.model(torch.tensor([TEXT])).logits).all()
    assert found.fingerprint == expected.fingerprint()
    assert found.norms == loaded(folders[name]).norms


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", FILES)
def test_the_packed_model_has_the_same_weights(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    try:
        folder = packed_folder(resolve(str(file_of(folders[name])), ModelStore(tmp_path), ignore_progress), "auto")
    except OtherFamilyError as error:
        pytest.skip(str(error))
    packed, expected = load_packed(folder, ignore_progress), loaded(folders[name])
    assert (packed.format, packed.context, packed.vocab_size) == ("F32", 256, 320)
    exact = load_dequantized(packed, folders[name], ignore_progress)
    assert_same(exact.model.state_dict(), expected.model.state_dict())
    assert packed.norms == expected.norms != ""


def test_qwen_composes_characters(folders: dict[str, Path], tmp_path: Path) -> None:
    file = write_gguf("qwen3", folders["qwen3"], tmp_path / "x.gguf", tokenizer="qwen2")
    tokenizer = load_tokenizer(described(file, tmp_path / "d"))
    assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")


def test_a_setting_that_is_missing_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    content = file_of(folders["qwen35"]).read_bytes()
    (tmp_path / "x.gguf").write_bytes(content.replace(b"qwen35.ssm.group_count", b"qwen35.ssm.group_xount"))
    with pytest.raises(EngineError, match=r"does not state qwen35\.ssm\.group_count"):
        config_of(tmp_path / "x.gguf")


def test_experts_of_several_sizes_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders["nemotron_h_moe"]
    file = write_gguf("nemotron_h_moe", folder, tmp_path / "x.gguf", expert_feed_forward_length=[32, 0, 16])
    with pytest.raises(EngineError, match=r"experts of a kind that is not supported: choose another .* --attach"):
        config_of(file)
