"""Peers: that they run, what they count, and why one is left out."""

import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from specchat.engine import Constraint, ConstraintKind, EngineError
from specchat.engine.tools.bench.peers import VARIABLE, LlamaCppPeer, TransformersPeer, load_library
from specchat.engine.tools.prompts import Prompt
from tests.engine.tiny import tiny_model as _model
from tests.failing import fails
from tests.tiny_model import write_tiny_gguf

PROMPTS = (Prompt("Hello"), Prompt("A longer question than that"))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_plain_generation_in_a_batch_of_unequal_prompts(temperature: float) -> None:
    peer = TransformersPeer(_model())
    assert (peer.name, peer.gamma, peer.refusal(8)) == ("transformers", 0, None)
    pace = peer.run(PROMPTS, 2, temperature, 12)
    assert 0 < pace.tokens <= 22
    assert pace.seconds > 0


def test_a_peer_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = _model()
    monkeypatch.setattr(loaded.model, "generate", fails(RuntimeError("no")))
    with pytest.raises(EngineError, match="transformers failed: no"):
        TransformersPeer(loaded).run(PROMPTS, 1, 0.0, 4)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[..., Path]) -> Path:
    folder = tiny_model(max_position_embeddings=2048, hidden_size=64)
    return write_tiny_gguf(folder, tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture
def library() -> ModuleType:
    return pytest.importorskip("xllamacpp")


@pytest.mark.usefixtures("library")
@pytest.mark.slow
def test_llama_cpp_decodes_alone_in_batches_and_with_prompt_lookup(gguf: Path) -> None:
    plain, lookup = (LlamaCppPeer(None, gguf, _model(), 64, 2, gamma) for gamma in (0, 3))
    prompts = (Prompt(ids=(5, 80, 33, 120, 7, 9)),) * 2
    for temperature in (0.0, 1.0):
        assert 0 < plain.run(prompts, 1, temperature, 10).tokens <= 18
    pace = plain.run(prompts, 2, 0.0, 10)
    assert (pace.tokens, pace.seconds > 0) == (18, True)
    assert 0 < lookup.run(prompts[:1], 1, 0.0, 10).tokens <= 9
    short = replace(prompts[0], constraint=Constraint(ConstraintKind.SCHEMA, '{"const": true}'))
    assert plain.run((short,), 1, 0.0, 60).tokens == len("true")
    assert (plain.read([5, 6, 7, 8]) or 0) > 0
    assert (plain.refusal(2), plain.refusal(3)) == (None, "it has 2 slots")
    assert "batch of 1 only" in str(lookup.refusal(2))
    with pytest.raises(EngineError, match=r"llama\.cpp failed: .*context"):
        plain.read([5] * 2000)
    for process in multiprocessing.active_children():
        process.kill()
    with pytest.raises(EngineError, match=r"process of llama\.cpp has ended"):
        plain.read([5, 6, 7])


def test_without_xllamacpp_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(EngineError, match=r"it needs the package xllamacpp .*run `pip install xllamacpp`"):
        load_library(None)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(EngineError, match=f"run `pip install --target {tmp_path} xllamacpp`"):
        load_library(None)
    assert str(tmp_path) in sys.path
