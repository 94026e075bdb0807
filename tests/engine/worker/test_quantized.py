"""The default model on the quantised kernels: the same greedy text whatever drafts, rides along, or computes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from specchat.engine.backends.packed import PackedBackend
from specchat.engine.config import EngineConfig
from specchat.engine.engine import Engine
from specchat.engine.errors import EngineError
from specchat.engine.kernels import library
from specchat.engine.worker import obtain
from specchat.engine.worker.assembly import Assembly, assemble
from tests.engine.tiny import ask, rounds_of, run_together, said_while_loading, started, text_of
from tests.tiny_model import write_tiny_gguf

QUESTIONS = ("Name three colours.", "Repeat this twice: one two three four five.", "What is 12 times 12?", "Say hello.")


@pytest.fixture(scope="module")
def engine(default_model: Path) -> Iterator[Engine]:
    with started(EngineConfig("smollm2-135m", default_model.parent, context=512)) as running:
        yield running


def texts(engine: Engine, drafter: str, batch: int, **about: object) -> list[str]:
    asked = [ask(text, text, drafter=drafter, max_tokens=16, **about) for text in QUESTIONS]
    return [text_of(events) for events in run_together(engine, asked, batch)]


@pytest.mark.usefixtures("kernels")
def test_greedy_text_is_the_same_for_drafters_batches_and_thread_counts(engine: Engine) -> None:
    ready = engine.wait_ready()
    assert ready.dtype == "Q4_1"
    assert ready.weight_bytes < 110e6
    assert {"combined", "head", "suffix", "ngram"} <= set(ready.drafters)  # the shipped head takes this target
    plain = texts(engine, "none", 1)
    assert all(plain)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for drafter, batch in (("head", 1), ("head", 4), ("suffix", 4), ("combined", 4)):
                assert texts(engine, drafter, batch, gamma=4) == plain, (drafter, batch, count)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.usefixtures("kernels")
def test_the_head_drafts_well_on_quantised_states(engine: Engine) -> None:
    rounds = rounds_of(engine.stream(ask(QUESTIONS[0], drafter="head", gamma=4, max_tokens=60)))
    assert sum(len(each.emitted) for each in rounds) / len(rounds) > 1.4


def assembled(target: Path | str, models: Path, **about: object) -> Assembly:
    config = EngineConfig(str(target), models, context=64, slots=1, **about)  # type: ignore[arg-type]
    return assemble(config, lambda *_: None)


def test_without_kernels_it_runs_in_bfloat16_and_says_why(default_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obtain, "missing", lambda: "the quantised kernels are not built")
    made = assembled("smollm2-135m", default_model.parent)
    assert not isinstance(made.target, PackedBackend)
    assert any("slower than it could: the quantised kernels are not built" in text for text in made.notices)


@pytest.mark.usefixtures("kernels")
def test_instructions_that_are_not_used_are_named(default_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = "the AMX instructions of this processor gave other sums than its AVX-512 ones, so they are not used"
    monkeypatch.setattr(library.Library, "notice", sentence)
    assert sentence in assembled("smollm2-135m", default_model.parent).notices


@pytest.mark.slow
@pytest.mark.usefixtures("kernels")
def test_a_stated_dtype_or_none_leaves_the_kernels_out(default_model: Path) -> None:
    for about in ({"dtype": "float32"}, {"quantize": "none"}):
        made = assembled("smollm2-135m", default_model.parent, **about)
        assert not isinstance(made.target, PackedBackend)
        assert not made.notices


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"quantize": "q5"}, "quantize 'q5' is not known: choose one of auto, q8, q4, none"),
        ({"cache_type": "q4"}, "cache type 'q4' is not known: choose one of f16, q8"),
        ({"quantize": "q4", "dtype": "float32"}, "quantize q4 contradicts dtype float32"),
    ],
)
def test_settings_that_mean_nothing(about: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=message):
        EngineConfig("x", tmp_path, **about)  # type: ignore[arg-type]


@pytest.mark.usefixtures("kernels")
def test_sizes_that_kernels_lack_run_in_the_modelling_code(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    file = write_tiny_gguf(tiny_model(), tmp_path / "small.gguf")
    with started(EngineConfig(str(file), tmp_path / "models", context=64)) as engine:
        assert engine.ready.dtype == "F32"  # as the file has it: its layers are on the kernels
        assert any("multiples of 16" in text and "slower" in text for text in said_while_loading(engine))
