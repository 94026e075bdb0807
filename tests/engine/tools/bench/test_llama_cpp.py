"""The peer llama.cpp: with a stand-in for its passes, in its refusals, and real where its libraries are named."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_uint32
from pathlib import Path

import pytest
import torch

from specchat.engine import EngineError
from specchat.engine.models.load import load_model
from specchat.engine.models.resolve import resolve
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import ignore_progress
from specchat.engine.tools.bench import roofline
from specchat.engine.tools.bench.command import BenchOptions, run
from specchat.engine.tools.bench.llama_cpp_decoder import LlamaCppDecoder
from specchat.engine.tools.bench.llama_cpp_library import VARIABLE, LlamaCppLibrary, Parameters, find_llama_cpp
from specchat.engine.tools.bench.llama_cpp_peer import LlamaCppPeer
from specchat.engine.tools.bench.prompts import Prompt
from tests.tiny_model import write_tiny_gguf

NAMED = os.environ.get(VARIABLE)
real = pytest.mark.skipif(not NAMED, reason=f"llama.cpp's libraries are not named by {VARIABLE}")
END = 5
PROMPTS = (Prompt("Hello"), Prompt("A longer question than that"))


@pytest.fixture(autouse=True)
def _small_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(roofline._COPIED, "cpu", 1 << 16)


class _Decoder:
    """Stands for LlamaCppDecoder: the token at position n is followed by n + 1 up to END, then by 0."""

    slots = 2

    def __init__(self) -> None:
        self.texts: dict[int, list[int]] = {}
        self.passes: list[int] = []
        self._judged: list[int] = []

    def decode(self, tokens: Sequence[int], slots: Sequence[int], positions: Sequence[int], judged: int) -> None:
        for token, slot, position in zip(tokens, slots, positions, strict=True):
            assert len(self.texts[slot]) == position, "positions follow each other"
            self.texts[slot].append(token)
        self._judged = list(tokens)
        self.passes.append(len(tokens))
        assert judged == len(tokens)

    def read(self, tokens: Sequence[int], slot: int) -> None:
        self.texts[slot] = list(tokens)

    def sample(self, sampler: int, place: int) -> int:
        assert sampler == 7
        return self._judged[place] % END + 1

    def forget(self, slot: int, position: int = 0) -> None:
        self.texts[slot] = self.texts.get(slot, [])[:position]

    @contextmanager
    def sampler(self, temperature: float, seed: int) -> Iterator[int]:  # noqa: ARG002
        yield 7

    @contextmanager
    def awake(self) -> Iterator[None]:
        yield


def _peer(decoder: _Decoder, gamma: int = 0) -> LlamaCppPeer:
    prompt = [9, 1, 2, 3, 4, 9, 10]  # is followed by 1, 2, 3, 4, 5
    return LlamaCppPeer(decoder, lambda _prompt: prompt, {END}, gamma)  # type: ignore[arg-type]


def test_tokens_are_counted_after_the_first_up_to_the_end() -> None:
    decoder = _Decoder()
    peer = _peer(decoder)
    assert (peer.name, peer.gamma) == ("llama.cpp", 0)
    assert peer.run(PROMPTS, 1, 0.0, 50).tokens == 2 * 4
    assert decoder.texts[0] == [9, 1, 2, 3, 4, 9, 10, 1, 2, 3, 4]
    assert peer.run(PROMPTS, 1, 0.0, 3).tokens == 2 * 2
    assert peer.run(PROMPTS, 2, 0.0, 50).tokens == 2 * 4
    assert decoder.passes[-1] == 2
    assert peer.refusal(2) is None
    assert peer.refusal(3) == "it has 2 slots"


def test_prompt_lookup_emits_the_same_tokens_in_fewer_passes() -> None:
    decoder = _Decoder()
    peer = _peer(decoder, gamma=2)
    assert (peer.name, peer.gamma) == ("llama.cpp prompt lookup", 2)
    assert peer.run(PROMPTS[:1], 1, 0.0, 50).tokens == 4
    assert decoder.passes == [1, 3, 3]
    assert decoder.texts[0] == [9, 1, 2, 3, 4, 9, 10, 1, 2, 3, 4]
    assert "batch of 1 only" in str(peer.refusal(2))


def test_a_refused_draft_is_forgotten() -> None:
    decoder = _Decoder()
    peer = LlamaCppPeer(decoder, lambda _prompt: [1, 3, 3, 10], {END}, 2)  # type: ignore[arg-type]
    assert peer.run(PROMPTS[:1], 1, 0.0, 50).tokens == 4
    assert decoder.texts[0] == [1, 3, 3, 10, 1, 2, 3, 4]


def test_without_the_library_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(EngineError, match=r"folder of its library is not given.*--llama-cpp"):
        find_llama_cpp(None)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(EngineError, match=f"no libllama under {tmp_path}.*--llama-cpp"):
        find_llama_cpp(None)


def test_the_library_is_found_at_any_depth_and_the_plain_one_of_several(tmp_path: Path) -> None:
    for folder in ("linux-x64-cuda", "linux-x64"):
        (tmp_path / folder).mkdir()
        for name in ("libllama-common.so", "libllama.v1.2.3.so", "libllama.txt"):
            (tmp_path / folder / name).write_bytes(b"")
    assert find_llama_cpp(tmp_path) == tmp_path / "linux-x64" / "libllama.v1.2.3.so"


def test_a_file_that_is_no_library_or_another_one_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "libllama.so"
    text.write_text("text")
    with pytest.raises(EngineError, match="cannot be loaded"):
        LlamaCppLibrary(text)
    (tmp_path / "other").mkdir()
    another = tmp_path / "other" / "libllama.so"
    another.symlink_to(Path(torch.__file__).parent / "lib" / "libc10.so")
    with pytest.raises(EngineError, match="is of a release without llama_backend_init"):
        LlamaCppLibrary(another)


@pytest.mark.parametrize(
    ("words", "place"),
    [((512, 2048, 512, 1, 4, 4), 4), ((512, 2048, 512, 1, 0, 0, 1, 4, 4), 7), ((0, 512, 4, 4), None)],
)
def test_threads_are_set_where_the_default_stands(words: tuple[int, ...], place: int | None) -> None:
    library = LlamaCppLibrary.__new__(LlamaCppLibrary)
    library.file = Path("libllama.so")
    defaults = Parameters((c_uint32 * 256)(*words))
    library.__dict__["llama_context_default_params"] = lambda: Parameters.from_buffer_copy(defaults)
    if place is None:
        with pytest.raises(EngineError, match="a layout that is not known"):
            library._find_threads()
        return
    library._threads_at = library._find_threads()
    made = library.context_parameters(4096, 2, 3)
    assert list(made.words[:4]) == [4096, 4096, 512, 2]
    assert list(made.words[place : place + 2]) == [3, 3]


def _options(**given: object) -> BenchOptions:
    quick = {"command": "bench", "prompts": ("chat",), "limit": 1, "max_tokens": 8, "passes": 1, "threads": 1}
    return BenchOptions(**quick, peers=("llama.cpp",), **given)  # type: ignore[arg-type]


@real
def test_real_passes_give_the_same_tokens_as_the_network(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    file = write_tiny_gguf(tiny_model(), tmp_path / "tiny.gguf")
    loaded = load_model(
        resolve(str(file), ModelStore(tmp_path / "models"), ignore_progress),
        torch.device("cpu"),
        torch.float32,
        ignore_progress,
    )
    decoder = LlamaCppDecoder(LlamaCppLibrary(find_llama_cpp(None)), file, 64, 2, 1, on_cpu=True)
    ids = [5, 80, 33, 120, 7, 9]
    best = loaded.model(torch.tensor([ids])).logits[0].argmax(-1).tolist()
    with decoder.awake(), decoder.sampler(0.0, 1) as greedy:
        decoder.read(ids[:2], 1)
        decoder.decode(ids[2:], [1] * 4, range(2, 6), 4)
        assert [decoder.sample(greedy, place) for place in range(4)] == best[2:]
        decoder.forget(1, 3)
        decoder.read(ids[:3], 0)
        decoder.decode([ids[3], ids[3]], [0, 1], [3, 3], 2)
        assert [decoder.sample(greedy, place) for place in range(2)] == [best[3]] * 2
    assert decoder.vocab_size == loaded.vocab_size
    decoder.close()


@real
def test_real_beside_the_engine(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    file = write_tiny_gguf(tiny_model(max_position_embeddings=2048, hidden_size=64), tmp_path / "tiny.gguf")
    options = _options(models=tmp_path / "models", target=str(file), batches=(1, 2), prompt_tokens=40)
    report = run(options, lambda _line: None)
    assert report.notes == ("llama.cpp prompt lookup: it drafts for a batch of 1 only",)
    assert [(peer.batch, peer.name) for peer in report.peers] == [
        (1, "llama.cpp"),
        (1, "llama.cpp prompt lookup"),
        (2, "llama.cpp"),
    ]
    assert report.peers[0].variants.keys() == {"none", "ngram 4"}
    assert [reading.name for reading in report.readings] == ["none", "ngram", "llama.cpp"]
    assert {"specchat", "llama.cpp"} == report.setting.instruction_sets.keys()
    assert report.setting.threads == 1
    text = report.text()
    assert "llama.cpp computes with " in text
    assert "against llama.cpp: none " in text
    assert "reading a prompt of 40 tokens" in text


@real
def test_real_refusals(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    library = LlamaCppLibrary(find_llama_cpp(None))
    with pytest.raises(EngineError, match=r"it cannot read .*broken\.gguf"):
        LlamaCppDecoder(library, broken, 64, 1, 1, on_cpu=True)
    report = run(_options(models=tmp_path / "models", target=str(tiny_model(max_position_embeddings=2048))), print)
    (note,) = report.notes
    assert "it reads GGUF files only" in note
