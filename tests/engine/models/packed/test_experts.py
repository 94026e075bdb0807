"""Mixtures of experts in the forms in which they are published: in bfloat16, in MXFP4, and in the types of GGUF."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as GgmlType
from safetensors.torch import load_file, save_file

from specchat.engine.backends.packed import PackedBackend
from specchat.engine.errors import EngineError
from specchat.engine.kernels.packed_matrix import Format, unpack
from specchat.engine.models.checkpoint import Checkpoint
from specchat.engine.models.gguf.blocks import dequantized_rows
from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.models.load import load_model
from specchat.engine.models.packed.build import pack_gguf
from specchat.engine.models.packed.load import PackedModel, load_dequantized, load_packed
from specchat.engine.progress import ignore_progress
from tests.engine.drafters.models import pack
from tests.engine.families import write_family
from tests.engine.gguf_files import write_gguf

pytestmark = pytest.mark.usefixtures("kernels")
CPU = torch.device("cpu")
TOKENS = torch.arange(3, 43) * 7 % 317 + 3


@pytest.fixture
def published(tmp_path: Path) -> Path:
    return write_family("gpt-oss-mxfp4", tmp_path / "published")


def write_mixture(name: str, folder: Path, file: Path, *kinds: GgmlType) -> Path:
    """Write a GGUF file with experts of these types (gate, up, down), other matrices Q8_0; give the file back."""
    of_experts = dict(zip(("gate", "up", "down"), kinds, strict=True))

    def kind(place: str, _: torch.Tensor) -> GgmlType:
        if place.endswith("bias") or "_inp" in place:
            return GgmlType.F32
        part = next((part for part in of_experts if f"{part}_exps" in place), "")
        return of_experts.get(part, GgmlType.Q8_0)

    return write_gguf(name, folder, file, kind)


def write_published(folder: Path, file: Path) -> Path:
    return write_mixture("gpt-oss", folder, file, *[GgmlType.MXFP4] * 3)


def pack_file(file: Path, folder: Path, tmp_path: Path) -> PackedModel:
    (tmp_path / "gguf").mkdir()
    pack_gguf(file, folder, tmp_path / "gguf", "identity", ignore_progress)
    return load_packed(tmp_path / "gguf", ignore_progress)


def change(folder: Path, **tensors: torch.Tensor) -> None:
    file = folder / "model.safetensors"
    save_file(load_file(file) | {name.replace("__", "."): x for name, x in tensors.items()}, file, {"format": "pt"})


@pytest.mark.parametrize("method", ["q8", "q4"])
def test_published_experts_keep_their_codes(published: Path, method: str, tmp_path: Path) -> None:
    packed = pack(published, tmp_path, method)
    theirs = load_model(published, CPU, torch.float32, ignore_progress)
    assert packed.format == "MXFP4"
    assert packed.fingerprint == theirs.fingerprint
    state = load_dequantized(packed, published, ignore_progress).model.state_dict()
    assert state.keys() == theirs.model.state_dict().keys()
    exact = (".experts.", ".router.", "norm", "sinks", ".bias")
    for name, weight in theirs.model.state_dict().items():
        if any(part in name for part in exact):
            assert torch.equal(state[name], weight), name
    gate = packed.weights.matrix("model.layers.0.mlp.experts.gate_proj.weight")
    assert gate.format is Format.MXFP4


def test_experts_in_bfloat16_are_quantised(tmp_path: Path) -> None:
    folder = write_family("gpt-oss", tmp_path / "plain")
    packed = pack(folder, tmp_path)
    theirs = load_model(folder, CPU, torch.float32, ignore_progress)
    assert (packed.format, packed.fingerprint) == ("Q8", theirs.fingerprint)
    state = load_dequantized(packed, folder, ignore_progress).model.state_dict()
    for name, weight in theirs.model.state_dict().items():
        if ".experts." in name:
            torch.testing.assert_close(state[name], weight, atol=0.51 / 127 * float(weight.abs().max()), rtol=0)


def test_experts_may_be_stored_together_or_one_by_one(tmp_path: Path) -> None:
    """Qwen3.5 is published with the experts of a layer in one tensor; transformers writes them apart."""
    apart = write_family("qwen3.5-moe", tmp_path / "apart")
    together = Path(shutil.copytree(apart, tmp_path / "together"))
    state = load_file(apart / "model.safetensors")
    experts = {name: state.pop(name) for name in list(state) if ".experts." in name}
    for layer in range(3):
        stem = f"model.layers.{layer}.mlp.experts"
        gate, up, down = (
            torch.stack([experts[f"{stem}.{expert}.{part}_proj.weight"] for expert in range(6)])
            for part in ("gate", "up", "down")
        )
        state |= {f"{stem}.gate_up_proj": torch.cat([gate, up], dim=1), f"{stem}.down_proj": down}
    save_file(state, together / "model.safetensors", {"format": "pt"})
    one, other = (pack(folder, tmp_path) for folder in (apart, together))
    assert one.fingerprint == other.fingerprint
    assert torch.equal(*(PackedBackend(each, 1, 120, 17).forward(TOKENS[None], [0], [0]) for each in (one, other)))


def test_a_gguf_file_has_the_same_experts(published: Path, tmp_path: Path) -> None:
    packed = pack(published, tmp_path)
    file = write_published(published, tmp_path / "model.gguf")
    read = pack_file(file, published, tmp_path)
    assert read.weights.index["matrices"].keys() == packed.weights.index["matrices"].keys()
    for name in packed.weights.index["matrices"]:
        ours, theirs = packed.weights.matrix(name), read.weights.matrix(name)
        if ".experts." in name:
            assert np.array_equal(ours.data, theirs.data), name
        else:
            assert np.abs(unpack(ours) - unpack(theirs)).max() < 0.01
    vectors = read.weights.index["vectors"]
    assert vectors.keys() == packed.weights.index["vectors"].keys()
    assert any(name.endswith("sinks") for name in vectors)
    for name in vectors:
        assert np.array_equal(packed.weights.vector(name), read.weights.vector(name)), name


@pytest.mark.parametrize(
    "kinds",
    [
        (GgmlType.Q4_K, GgmlType.Q4_K, GgmlType.Q6_K),  # as in most files named Q4_K_M
        (GgmlType.Q5_K, GgmlType.Q5_K, GgmlType.Q8_0),
        (GgmlType.Q4_0, GgmlType.Q4_1, GgmlType.Q5_0),
    ],
    ids=lambda kinds: "-".join(kind.name for kind in kinds),
)
def test_experts_of_qwen3_keep_the_codes_of_a_gguf_file(kinds: tuple[GgmlType, ...], tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "moe_intermediate_size": 256, "initializer_range": 0.05}
    folder = write_family("qwen3-moe", tmp_path / "qwen3", mlp_only_layers=[], norm_topk_prob=True, **sizes)
    file = write_mixture("qwen3moe", folder, tmp_path / "model.gguf", *kinds)
    packed, header = pack_file(file, folder, tmp_path), GgufHeader.read(file)
    for part, kind in zip(("gate", "up", "down"), kinds, strict=True):
        tensor = header.tensors[f"blk.1.ffn_{part}_exps.weight"]
        assert tensor.type == kind.name
        matrix = packed.weights.matrix(f"model.layers.1.mlp.experts.{part}_proj.weight")
        wanted = dequantized_rows(header, tensor, np.arange(matrix.rows))
        np.testing.assert_allclose(unpack(matrix), wanted, rtol=1e-6, atol=1e-9)
    reference = load_dequantized(packed, folder, ignore_progress).model
    with torch.inference_mode():
        expected = reference(TOKENS[None]).logits[0].log_softmax(-1)
    found = PackedBackend(packed, 1, 120, 17).forward(TOKENS[None], [0], [0])[0].log_softmax(-1)
    assert (expected.exp() * (expected - found)).sum(-1).mean() < 0.01


def test_logits_of_gpt_oss_are_those_of_llama_cpp(published: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("xllamacpp")
    file = write_published(published, tmp_path / "model.gguf")
    model = pack_file(file, published, tmp_path)
    logits = PackedBackend(model, 1, 120, 17).forward(TOKENS[None], [0], [0])[0].log_softmax(-1)
    settings = library.CommonParams()
    settings.model.path, settings.n_ctx, settings.n_gpu_layers, settings.port = str(file), 256, 0, 0
    settings.warmup, settings.cpuparams.n_threads = False, 1
    server = library.Server(settings)
    for length in (1, 12, 40):  # within a window of 8 and beyond it
        ids = TOKENS[:length].tolist()
        reply = server.handle_completions({"prompt": ids, "n_predict": 1, "n_probs": 10, "temperature": 0.0})
        (token,) = reply["choices"][0]["logprobs"]["content"]
        for each in token["top_logprobs"]:
            assert abs(logits[length - 1, each["id"]] - each["logprob"]) < 0.1


def test_two_weights_in_a_byte_are_counted(published: Path, tmp_path: Path) -> None:
    plain = Checkpoint.open(write_family("gpt-oss", tmp_path / "plain")).parameters
    assert plain <= Checkpoint.open(published).parameters <= 1.1 * plain


@pytest.mark.parametrize("kind", ["gpt-oss", "gpt-oss-mxfp4", "qwen3-moe", "gguf"])
def test_a_wrong_number_of_experts_is_refused(kind: str, tmp_path: Path) -> None:
    folder = write_family("gpt-oss-mxfp4" if kind == "gguf" else kind, tmp_path / "model")
    file = write_published(folder, tmp_path / "model.gguf") if kind == "gguf" else None
    config = json.loads((folder / "config.json").read_text())
    config["num_local_experts" if "num_local_experts" in config else "num_experts"] = 7
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(EngineError, match=r"has \d+ rows, and the 7 experts of the configuration need \d+: fetch"):
        pack_file(file, folder, tmp_path) if file else pack(folder, tmp_path)


def test_what_is_missing_or_damaged_is_named(published: Path, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.experts.down_proj_scales"
    scales = load_file(published / "model.safetensors")[name]
    scales[2, 3, 0] = 255
    change(published, **{name: scales})
    with pytest.raises(EngineError, match=r"is damaged \(model.layers.1.mlp.experts.down_proj.weight holds values"):
        pack(published, tmp_path)
    state = load_file(published / "model.safetensors")
    del state[name]
    save_file(state, published / "model.safetensors", {"format": "pt"})
    with pytest.raises(EngineError, match=f"lacks weights \\({name}\\)"):
        pack(published, tmp_path)
