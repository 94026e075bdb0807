"""Look-ahead positions: exact whatever they say, and what they say is what the target says of such a text alone."""

from pathlib import Path

import pytest
import torch

from specchat.engine import EngineConfig, EngineError, Finished, Request
from specchat.engine.backends.packed import PackedBackend
from specchat.engine.models.load import LoadedModel
from specchat.engine.progress import ignore_progress
from specchat.engine.research.pass_drafter import LookAhead, load_look_ahead, save_look_ahead
from specchat.engine.worker.assembly import assemble, assemble_loaded
from tests.engine.drafters.models import packed_family
from tests.engine.tiny import ask, ids_of, rounds_of, tiny_engine, tiny_model
from tests.tiny_model import write_tiny_model


def look_ahead(target: LoadedModel, count: int = 3) -> LookAhead:
    """Embeddings of tokens, which predict right now and then."""
    rows = target.model.get_input_embeddings().weight[torch.arange(97, 97 + count)]
    return LookAhead(rows.detach().float().clone(), "tiny look-ahead")


def test_a_draft_is_what_the_target_predicts_after_the_text_and_at_the_embeddings() -> None:
    target, plain = tiny_model(), tiny_model()  # a runner changes its model's attention
    loaded = look_ahead(target)
    prompt = (104, 105, 33, 104, 105, 33, 104)
    with tiny_engine(target, look_ahead=loaded) as engine:
        request = Request("r", prompt_ids=prompt, drafter="pass", gamma=3, max_tokens=60)
        rounds = rounds_of(engine.stream(request))
    text = [*prompt]
    with torch.inference_mode():
        for record in rounds:
            embedded = plain.model.get_input_embeddings()(torch.tensor([text]))
            logits = plain.model(inputs_embeds=torch.cat([embedded, loaded.embeddings[None, :2]], 1)).logits[0]
            assert list(record.drafted) == logits[len(text) - 1 :].argmax(-1).tolist()[: len(record.drafted)]
            text += record.emitted
    assert all(record.accepted >= min(1, len(record.drafted)) for record in rounds), "the first is the target's own"
    assert len({record.accepted for record in rounds}) > 1


def test_on_the_kernels_a_draft_is_what_the_target_predicts_at_the_embeddings(tmp_path: Path) -> None:
    model = packed_family("llama", tmp_path)
    ahead = torch.from_numpy(model.embedding.rows_of(torch.arange(50, 53).numpy()))
    text, drafted = [3 + (31 + 7 * i) % 300 for i in range(14)], 0
    with tiny_engine(model, look_ahead=LookAhead(ahead, "some")) as engine:
        request = Request("r", prompt_ids=tuple(text), drafter="pass", gamma=3, max_tokens=24)
        rounds = rounds_of(engine.stream(request))
    target = PackedBackend(model, 1, 200, 17)
    for record in rounds:
        if record.drafted:
            entered = torch.cat([target.embedding_rows(torch.tensor([text]))[0], ahead[:2]])[None]
            said = target.forward(entered, [0], [0])[0, len(text) - 1 :]
            assert list(record.drafted) == said.argmax(-1).tolist()[: len(record.drafted)]
            drafted += 1
        text += record.emitted
    assert drafted


def test_a_target_that_scales_its_embeddings_is_refused_by_name(tmp_path: Path) -> None:
    model, config = packed_family("gemma2", tmp_path), EngineConfig("gemma2", tmp_path, slots=1, context=64)
    with pytest.raises(EngineError, match="gemma2 scales its embeddings"):
        assemble_loaded(config, model, look_ahead=LookAhead(torch.ones(1), ""))


def test_drafts_near_the_end_of_the_context_fit() -> None:
    target = tiny_model()
    prompt = tuple(range(97, 117)) * 11
    with tiny_engine(target, look_ahead=look_ahead(target)) as engine:
        plain = ids_of(engine.stream(Request("p", prompt_ids=prompt, drafter="none", max_tokens=100)))
        drafted = Request("r", prompt_ids=prompt, drafter="pass", gamma=3, max_tokens=100)
        assert ids_of(engine.stream(drafted)) == plain


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    target, folder = tiny_model(), tmp_path / "ahead"
    loaded = look_ahead(target)
    save_look_ahead(folder, loaded.embeddings, target.name, target.fingerprint, {})
    assert torch.equal(load_look_ahead(folder, target).embeddings, loaded.embeddings)
    other = write_tiny_model(tmp_path / "other", seed=5)
    with pytest.raises(EngineError, match="made for tiny, with other weights than other has"):
        assemble(EngineConfig(str(other), tmp_path / "store", draft=str(folder)), ignore_progress)
    for content, words in ((b"", "is broken"), (None, "is broken")):
        weights = folder / "look-ahead.safetensors"
        weights.unlink() if content is None else weights.write_bytes(content)
        with pytest.raises(EngineError, match=words):
            load_look_ahead(folder, target)
    (folder / "look-ahead.json").write_text("{")
    with pytest.raises(EngineError, match="has no look-ahead embeddings"):
        load_look_ahead(folder, target)
    with tiny_engine(target) as engine:
        last = list(engine.stream(ask("hello", drafter="pass")))[-1]
    assert isinstance(last, Finished)
    assert "distill --kind pass makes" in last.message
