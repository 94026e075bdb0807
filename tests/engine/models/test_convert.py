"""GGUF to a folder: what comes out equals what went in, and what cannot be converted is refused by name."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from specchat.engine.device import device
from specchat.engine.errors import EngineError
from specchat.engine.models import convert
from specchat.engine.models.convert import convert_gguf
from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.models.gguf.rope import llama3_factors
from specchat.engine.models.load import LoadedModel, load_model
from specchat.engine.progress import ignore_progress
from tests.failing import fails
from tests.tiny_model import write_tiny_gguf

CPU = torch.device("cpu")
IDS = torch.arange(3, 203)[None]


@pytest.fixture(scope="session")
def source(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model(dtype=torch.bfloat16)  # values that bfloat16 holds exactly, so that nothing is lost on the way


@pytest.fixture(scope="session")
def gguf(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(source, tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def converted(file: Path, tmp_path: Path) -> LoadedModel:
    folder = tmp_path / "converted"
    folder.mkdir()
    convert_gguf(file, folder, ignore_progress)
    return load_model(folder, CPU, torch.float32, ignore_progress)


def test_weights_tokens_and_template_survive(source: Path, gguf: Path, tmp_path: Path) -> None:
    before, after = load_model(source, CPU, torch.float32, ignore_progress), converted(gguf, tmp_path)
    assert torch.equal(before.model(IDS).logits, after.model(IDS).logits)
    for text in ("the quick  brown fox 12 345\n", "<|im_start|>user\nümlaut 🦊<|im_end|>"):
        assert before.tokenizer.encode(text) == after.tokenizer.encode(text)
        assert after.tokenizer.decode(after.tokenizer.encode(text)) == text
    assert after.tokenizer.chat_template == before.tokenizer.chat_template
    assert (after.eos_ids, after.context, after.vocab_size) == ({0, 2}, 256, 320)


def test_added_tokens_and_whole_words_are_found(source: Path, gguf: Path, tmp_path: Path) -> None:
    metadata = GgufHeader.read(gguf).metadata
    texts, kinds = (list(metadata[f"tokenizer.ggml.{key}"]) for key in ("tokens", "token_type"))
    texts[1] = "<｜User｜>"
    blank, word = [token for token, text in enumerate(texts) if text.startswith("[PAD")][:2]
    texts[blank], kinds[blank], texts[word] = " \n ", 4, "zzq"
    keys = {"tokens": texts, "token_type": kinds, "pre": "llama-bpe"}
    changed = {f"tokenizer__ggml__{key}": value for key, value in keys.items()}
    tokenizer = converted(write_tiny_gguf(source, tmp_path / "x.gguf", **changed), tmp_path).tokenizer
    assert len(tokenizer.get_vocab()) == 320
    the = tokenizer.encode("the", add_special_tokens=False)
    assert tokenizer.encode("<｜User｜>the \n zzq") == [1, *the, blank, word]
    assert tokenizer.decode([1, *the, blank, word], skip_special_tokens=True) == "the \n zzq"


def test_the_folder_loads_in_plain_transformers_and_names_no_gguf(gguf: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    converted(gguf, tmp_path)
    folder = tmp_path / "converted"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        text = (folder / name).read_text()
        assert "gguf" not in text
        assert "quantization" not in text
        assert str(gguf.parent) not in text
        assert "local_files_only" not in text


def test_llama_3_rope_is_recovered_from_its_table(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    source = tiny_model(dtype=torch.bfloat16, rope_parameters=rope, max_position_embeddings=131072)
    before = load_model(source, CPU, torch.float32, ignore_progress)
    factors = llama3_factors(500000.0, 8, 32.0)
    after = converted(write_tiny_gguf(source, tmp_path / "llama3.gguf", rope_factors=factors), tmp_path)
    assert after.model.config.rope_parameters == rope
    assert torch.equal(before.model(IDS).logits, after.model(IDS).logits)


def test_every_end_token_ends_a_reply(source: Path, tmp_path: Path) -> None:
    file = write_tiny_gguf(
        source, tmp_path / "x.gguf", tokenizer__ggml__eot_token_id=7, tokenizer__ggml__eom_token_id=2
    )
    assert converted(file, tmp_path).eos_ids == {0, 2, 7}


@pytest.mark.model
def test_the_default_model_is_what_the_wheel_holds(default_model: Path) -> None:
    from transformers import AutoTokenizer

    config = json.loads((default_model / "config.json").read_text())
    assert (config["model_type"], config["num_hidden_layers"], config["vocab_size"]) == ("llama", 30, 49152)
    model = load_model(default_model, CPU, torch.bfloat16, ignore_progress)
    chat = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    tokenizer = AutoTokenizer.from_pretrained(default_model)
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    reply = model.model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in model.tokenizer.decode(reply)
    assert int(reply[-1]) in model.eos_ids
    # As in the original tokenizer, each digit is a token, and the spaces before it are one token.
    assert tokenizer.tokenize("I have  5 or 12") == ["I", "Ġhave", "ĠĠ", "5", "Ġor", "Ġ", "1", "2"]


# What cannot be converted.


def _refused(file: Path, tmp_path: Path, sentence: str) -> None:
    folder = tmp_path / "refused"
    folder.mkdir(exist_ok=True)
    with pytest.raises(EngineError, match=sentence) as caught:
        convert_gguf(file, folder, ignore_progress)
    assert "\n" not in str(caught.value)


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda content: content.replace(old, new)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        *(
            (lambda content, at=at: content[: max(4, int(at * len(content)))], "cut short")
            for at in (0, 1e-3, 0.5, 0.99)
        ),
        (lambda content: content[:24] + b"\xff" * 8 + content[32:], "damaged or cut short inside its header"),
        (lambda content: content[:4] + struct.pack("<I", 9) + content[8:], "has GGUF version 9"),
        (replaced(b"llama", b"lemma"), "architecture lemma, which cannot be read .*--attach"),
        (replaced(b"blk.1.attn_k.w", b"blk.1.attn_j.w"), r"lacks weights \(model.layers.1.self_attn.k_proj.weight\)"),
    ],
)
def test_a_damaged_file(gguf: Path, tmp_path: Path, change: Callable[[bytes], bytes], sentence: str) -> None:
    (tmp_path / "x.gguf").write_bytes(change(gguf.read_bytes()))
    _refused(tmp_path / "x.gguf", tmp_path, sentence)


def test_weights_that_are_not_numbers(gguf: Path, tmp_path: Path) -> None:
    content = bytearray(gguf.read_bytes())
    tensor = GgufHeader.read(gguf).tensors["blk.1.ffn_up.weight"]
    content[tensor.offset : tensor.offset + 4] = struct.pack("<f", float("nan"))
    damaged = tmp_path / "nan.gguf"
    damaged.write_bytes(content)
    _refused(damaged, tmp_path, r"damaged \(model.layers.1.mlp.up_proj.weight holds values that are not numbers")


def test_an_empty_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").write_text("")
    _refused(tmp_path / "empty.gguf", tmp_path, "cut short")
    _refused(tmp_path, tmp_path, "cannot be read")


@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        ({"split__count": 3}, "is one of 3 parts"),
        ({"general__type": "adapter"}, r"a part of a model \(adapter\)"),
        ({"llama__rope__scaling__type": "longrope"}, r"scales its rope \(longrope\)"),
        ({"rope_factors": np.array([3.0, 9.0, 1.0, 2.0])}, "rope factors that is not Llama 3's"),
    ],
)
def test_kinds_that_would_go_wrong(source: Path, tmp_path: Path, metadata: dict[str, Any], sentence: str) -> None:
    _refused(write_tiny_gguf(source, tmp_path / "x.gguf", **metadata), tmp_path, sentence)


def test_too_little_memory_or_disk(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(device, "available_memory", lambda _: 1000)
        _refused(gguf, tmp_path, r"converting tiny.gguf needs \d+ kB of memory and this machine has 1 kB free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    _refused(gguf, tmp_path, "converting tiny.gguf needs")


def test_the_disk_filling_up_meanwhile(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
    monkeypatch.setattr(convert, "add_gguf_sampling", fails(full))
    _refused(gguf, tmp_path, r"stopped because the disk of .* is full")
