"""Packed models: built once from GGUF files or safetensors, found again, and built anew when they cannot be used."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from specchat.engine.errors import EngineError
from specchat.engine.kernels.packed_matrix import unpack
from specchat.engine.models import ModelStore
from specchat.engine.models.checkpoint import has_weights
from specchat.engine.models.formats import packed_folder
from specchat.engine.models.load import load_model
from specchat.engine.models.packed.file import INDEX, WEIGHTS, PackedFileError, PackedWeights
from specchat.engine.models.packed.load import load_packed
from specchat.engine.models.resolve import resolve
from specchat.engine.progress import Progress, ignore_progress
from tests.engine.families import write_family
from tests.engine.gguf_files import write_gguf, write_source
from tests.failing import untouched

pytestmark = pytest.mark.usefixtures("kernels")
CPU = torch.device("cpu")


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "store")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_family("llama", tmp_path / "tiny")


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """A llama whose matrices are quantised as many are: the embedding Q8_0, layers Q4_0."""

    def kind(place: str, _: torch.Tensor) -> GGMLQuantizationType:
        return GGMLQuantizationType.Q8_0 if "token_embd" in place else GGMLQuantizationType.Q4_0

    folder = write_source("llama", tmp_path / "plain", tie_word_embeddings=True)
    return write_gguf("llama", folder, tmp_path / "tiny.gguf", kind)


def packed_from(
    spec: Path | str, store: ModelStore, quantize: str = "auto", progress: Progress = ignore_progress
) -> Path:
    return packed_folder(resolve(str(spec), store, progress), quantize)


def test_a_gguf_file_keeps_its_codes(gguf: Path, store: ModelStore) -> None:
    folder = packed_from(gguf, store)
    packed = load_packed(folder, ignore_progress)
    assert (packed.format, packed.name, packed.context, packed.eos_ids) == ("Q4_0", "tiny", 256, {0, 2})
    rounded = load_model(resolve(str(gguf), store, ignore_progress).folder(), CPU, torch.float32, ignore_progress)
    assert packed.fingerprint == rounded.fingerprint


def test_the_weights_are_on_disk_once_until_they_are_needed_unquantised(gguf: Path, store: ModelStore) -> None:
    folder = packed_from(gguf, store)
    name = resolve(str(gguf), store, untouched).folder(weights=False).name
    assert not list(store.folder.rglob("*.safetensors"))
    assert store.models()[0].bytes < 1.6 * gguf.stat().st_size  # with the tokenizer of so small a model
    assert has_weights(resolve(name, store, ignore_progress).folder())
    assert packed_from(name, store, progress=untouched) == packed_from(gguf, store, progress=untouched) == folder
    assert [each.name for each in store.models()] == [name]


def test_a_tokenizer_that_an_earlier_version_converted_is_converted_again(gguf: Path, store: ModelStore) -> None:
    folder = packed_from(gguf, store)
    converted = resolve(str(gguf), store, ignore_progress).folder()
    expected = load_packed(folder, ignore_progress).tokenizer.encode("the fox")
    weights = [(file, file.stat().st_ino) for file in (folder / WEIGHTS, converted / "model.safetensors")]
    for place in (folder, converted):
        content = json.loads((place / "tokenizer.json").read_text())
        content["pre_tokenizer"]["pretokenizers"] = [{"type": "WhitespaceSplit"}]
        (place / "tokenizer.json").write_text(json.dumps(content))
    index, config = (json.loads((place).read_text()) for place in (folder / INDEX, converted / "tokenizer_config.json"))
    del index["tokenizer"]["version"], config["specchat"]
    (folder / INDEX).write_text(json.dumps(index))
    (converted / "tokenizer_config.json").write_text(json.dumps(config))
    assert packed_from(gguf, store) == folder
    assert load_packed(folder, ignore_progress).tokenizer.encode("the fox") == expected
    assert [(file, file.stat().st_ino) for file, _ in weights] == weights
    assert packed_from(gguf, store, progress=untouched) == folder


def test_what_was_packed_outlives_its_file(gguf: Path, store: ModelStore) -> None:
    folder = packed_from(gguf, store)
    name = resolve(str(gguf), store, untouched).folder(weights=False).name
    gguf.unlink()
    assert packed_from(name, store, progress=untouched) == folder
    with pytest.raises(EngineError, match=r"there is no file .*tiny\.gguf"):
        resolve(name, store, ignore_progress).folder()
    gguf.write_bytes(b"GGUF of another model")
    with pytest.raises(EngineError, match="is no longer the file that tiny-"):
        resolve(name, store, ignore_progress).folder()


def test_a_converted_file_that_is_gone_is_quantised_anew(gguf: Path, store: ModelStore) -> None:
    name = resolve(str(gguf), store, ignore_progress).folder().name
    gguf.unlink()
    assert packed_from(name, store) == store.packed.path(f"{name}.q8")


def test_safetensors_are_quantised_and_not_touched(model: Path, store: ModelStore) -> None:
    before = {file.name: file.read_bytes() for file in model.iterdir()}
    plain = load_model(model, CPU, torch.float32, ignore_progress)
    state = plain.model.state_dict()
    assert packed_from(model, store) == packed_folder(resolve(str(model), store, untouched), "q8")
    for method, step in (("q8", 1 / 127), ("q4", 1 / 15)):
        folder = packed_from(model, store, method)
        packed = load_packed(folder, ignore_progress)
        assert packed.fingerprint == plain.fingerprint
        assert packed.format == method.upper()
        for name, rounding in (("model.layers.1.mlp.down_proj.weight", step), ("lm_head.weight", 1 / 127)):
            groups = state[name].reshape(-1, 32)
            found = torch.from_numpy(unpack(packed.weights.matrix(name))).reshape(-1, 32)
            spread = groups.abs().amax(1) if rounding == 1 / 127 else groups.amax(1) - groups.amin(1)
            assert ((found - groups).abs().amax(1) <= 0.51 * rounding * spread).all()
        for name in ("model.norm.weight", "model.layers.0.input_layernorm.weight"):
            assert np.array_equal(packed.weights.vector(name), state[name].numpy())
    assert {file.name: file.read_bytes() for file in model.iterdir()} == before


def test_other_weights_are_quantised_anew(model: Path, store: ModelStore) -> None:
    first = packed_from(model, store, "q8")
    shutil.rmtree(model)
    write_family("llama", model, initializer_range=0.1)
    second = packed_from(model, store, "q8")
    assert second is not None
    assert first != second


@pytest.mark.parametrize("harm", ["cut", "version", "no index", "no weights", "index"])
def test_what_is_damaged_is_found_and_built_anew(harm: str, gguf: Path, store: ModelStore) -> None:
    folder = packed_from(gguf, store)
    sound = (folder / WEIGHTS).read_bytes()
    if harm == "cut":
        (folder / WEIGHTS).write_bytes(sound[:-1])
    elif harm == "no weights":
        (folder / WEIGHTS).unlink()
    elif harm == "no index":
        (folder / INDEX).unlink()
    else:
        index = json.loads((folder / INDEX).read_text())
        if harm == "version":
            index["version"] += 1
        else:
            next(iter(index["matrices"].values()))["offset"] = len(sound)
        (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(PackedFileError, match=r"(packed\.json|weights\.packed) (is|cannot)"):
        PackedWeights.open(folder)
    assert packed_from(gguf, store) == folder
    assert (folder / WEIGHTS).read_bytes() == sound


def test_an_edited_template_takes_effect_without_packing_again(model: Path, store: ModelStore) -> None:
    def template() -> tuple[str | None, int]:
        folder = packed_from(model, store)
        return load_packed(folder, ignore_progress).tokenizer.chat_template, (folder / WEIGHTS).stat().st_mtime_ns

    before, packed_at = template()
    for text in ("{{ 'one' }}", "{{ 'two' }}"):
        (model / "chat_template.jinja").write_text(text)
        assert template() == (text, packed_at)
    (model / "chat_template.jinja").unlink()
    assert template() == (before, packed_at)


def test_a_folder_may_have_any_name(model: Path, store: ModelStore) -> None:
    for name in ("My Mod\u00e8le (1)", " .[b]", "\u6a21\u578b", "x" * 240):
        odd = model.rename(model.with_name(name))
        packed = packed_from(odd, store)
        assert packed is not None
        assert load_packed(packed, ignore_progress).vocab_size == 320
        odd.rename(model)
