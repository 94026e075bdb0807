"""T5 folders: what is loaded is what transformers computes; what cannot be loaded or drafted with is named."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specchat.engine import EngineConfig, EngineError
from specchat.engine.models.load import LoadedModel, load_model, pick_dtype, shared_model
from specchat.engine.progress import ignore_progress
from specchat.engine.worker.assembly import assemble
from specchat.engine.worker.obtain import make_runner
from tests.engine.rows import row_of
from tests.engine.tiny_t5 import CONTEXT, PAD, tiny_t5_network, write_tiny_t5

CPU = torch.device("cpu")


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> LoadedModel:
    return load_model(folder, CPU, dtype, ignore_progress)


def edit(folder: Path, **values: object) -> Path:
    """Change config.json, and drop what else says the same; None takes a value out."""
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    config |= values
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return folder


@pytest.mark.parametrize("gated", [False, True], ids=["T5", "T5 1.1"])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)], ids=str)
def test_a_loaded_folder_computes_what_transformers_does(tmp_path: Path, gated: bool, dtype: torch.dtype) -> None:
    folder = write_tiny_t5(tmp_path, gated=gated)
    if gated:  # as published ones say that their output layer is their own
        edit(folder, tie_word_embeddings=False, scale_decoder_outputs=None)
    model = shared_model(folder, CPU, dtype, ignore_progress)
    assert (model.start, model.context, model.format) == (PAD, CONTEXT, str(dtype).removeprefix("torch."))
    network = tiny_t5_network(gated=gated).to(dtype)
    source, reply = torch.arange(5, 45)[None], torch.tensor([[PAD, 30, 60, 90, 120]])
    with torch.inference_mode():
        expected = network(input_ids=source, decoder_input_ids=reply).logits
    runner = make_runner(model, slots=2, context=CONTEXT, overhang=17)
    row = row_of(source[0].tolist(), 1)
    runner.admit(row)
    tolerance = 1e-4 if dtype is torch.float32 else 0.1 * expected.abs().max().item()
    torch.testing.assert_close(runner.forward(reply, [1], [39]), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda folder: edit(folder, decoder_start_token_id=None), "does not say which token replies begin with"),
        (lambda folder: edit(folder, num_decoder_layers=50_000), "states 50003 layers of width 32"),
        (lambda folder: edit(folder, is_encoder_decoder=False), "is a t5 model, which does not continue text"),
        (lambda folder: write_tiny_t5(folder, template="{{ messages }}"), "is a t5 model with a chat template"),
    ],
)
def test_another_kind_of_folder_is_refused(tmp_path: Path, change: Callable[[Path], Path], sentence: str) -> None:
    folder = change(write_tiny_t5(tmp_path))
    with pytest.raises(EngineError, match=sentence) as caught:
        loaded(folder)
    assert str(folder) in str(caught.value)


def test_float16_is_refused_and_never_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tiny_t5(tmp_path)
    with pytest.raises(EngineError, match="overflow in float16"):
        loaded(folder, torch.float16)
    tiny_t5_network().to(torch.float16).save_pretrained(folder)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    assert pick_dtype("auto", torch.device("cuda:0"), folder) is torch.bfloat16


def test_a_model_that_does_not_say_its_context_has_that_of_its_training(tmp_path: Path) -> None:
    assert loaded(edit(write_tiny_t5(tmp_path), n_positions=None, decoder_start_token_id=PAD)).context == 512


def config(target: Path, draft: Path | None = None, **options: object) -> EngineConfig:
    stated = None if draft is None else str(draft)
    return EngineConfig(str(target), target.parent, draft=stated, dtype="float32", slots=1, **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_what_does_not_go_with_it_is_refused_by_name(tmp_path: Path, tiny_model: Callable[..., Path]) -> None:
    t5, other = write_tiny_t5(tmp_path / "t5"), write_tiny_t5(tmp_path / "other", decoder_start_token_id=5)
    llama = tiny_model()
    (head := tmp_path / "head").mkdir()
    (head / "head.json").write_text("{}")
    (embeddings := tmp_path / "embeddings").mkdir()
    (embeddings / "look-ahead.json").write_text("{}")
    cases = (
        (config(t5, llama), f"t5 is an encoder-decoder and the draft {llama.name} is none"),
        (config(llama, t5), f"{llama.name} is decoder-only and the draft t5 is not"),
        (config(t5, other), "the draft other begins its replies with token 5 and t5 with 0"),
        (config(t5, head), "head is a draft head, which needs a model that continues text, and t5 is an"),
        (config(t5, embeddings), "embeddings has look-ahead embeddings, which need a model that"),
        (config(t5, exact=True), "exact mode is for models that continue text, not for t5"),
    )
    for wanted, sentence in cases:
        with pytest.raises(EngineError, match=sentence):
            assemble(wanted, ignore_progress)


def test_quantising_it_is_left_out_and_said(tmp_path: Path) -> None:
    made = assemble(EngineConfig(str(write_tiny_t5(tmp_path / "t")), tmp_path, quantize="q8", slots=1), ignore_progress)
    assert any("models of type t5 do not run on the quantised kernels" in notice for notice in made.notices)
