"""Look-ahead positions: exact whatever they say, and what they say is what the target says of such a text alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specchat.engine import EngineConfig, EngineError, Finished, Request, Round, Sampling
from specchat.engine.models.load import LoadedModel
from specchat.engine.progress import ignore_progress
from specchat.engine.research.pass_drafter import LookAhead, load_look_ahead, save_look_ahead
from specchat.engine.worker.assembly import assemble
from tests.engine.sampled import check_distribution, sampled, says
from tests.engine.tiny import ask, assert_the_same_in_a_batch, ids_of, tiny_engine, tiny_model
from tests.tiny_model import write_tiny_model


def look_ahead(target: LoadedModel, count: int = 3) -> LookAhead:
    """Embeddings like those of tokens, which are right now and then."""
    rows = target.model.get_input_embeddings().weight[torch.arange(97, 97 + count)]
    return LookAhead(rows.detach().float().clone(), "tiny look-ahead")


@pytest.mark.parametrize("gamma", [1, 3, None])
def test_greedy_output_is_the_targets_own(gamma: int | None) -> None:
    target = tiny_model()
    with tiny_engine(target, look_ahead=look_ahead(target)) as engine:
        for text in ("hello", "a longer text with some words"):
            plain = ids_of(list(engine.stream(ask(text, drafter="none", max_tokens=50))))
            assert ids_of(list(engine.stream(ask(text, drafter="pass", gamma=gamma, max_tokens=50)))) == plain


def test_a_draft_is_what_the_target_predicts_after_the_text_and_at_the_embeddings() -> None:
    target, plain = tiny_model(), tiny_model()  # a runner changes its model's attention
    loaded = look_ahead(target)
    prompt = (104, 105, 33, 104, 105, 33, 104)
    with tiny_engine(target, look_ahead=loaded) as engine:
        request = Request("r", prompt_ids=prompt, drafter="pass", gamma=3, max_tokens=60)
        rounds = [event for event in engine.stream(request) if isinstance(event, Round)]
    text = [*prompt]
    with torch.inference_mode():
        for record in rounds:
            embedded = plain.model.get_input_embeddings()(torch.tensor([text]))
            logits = plain.model(inputs_embeds=torch.cat([embedded, loaded.embeddings[None, :2]], 1)).logits[0]
            assert list(record.drafted) == logits[len(text) - 1 :].argmax(-1).tolist()[: len(record.drafted)]
            text += record.emitted
    assert all(record.accepted >= min(1, len(record.drafted)) for record in rounds), "the first is the target's own"
    assert len({record.accepted for record in rounds}) > 1


def test_drafts_near_the_end_of_the_context_fit() -> None:
    target = tiny_model()
    prompt = tuple(range(97, 117)) * 11
    with tiny_engine(target, look_ahead=look_ahead(target)) as engine:
        plain = ids_of(list(engine.stream(Request("p", prompt_ids=prompt, drafter="none", max_tokens=100))))
        drafted = Request("r", prompt_ids=prompt, drafter="pass", gamma=3, max_tokens=100)
        assert ids_of(list(engine.stream(drafted))) == plain


def test_rows_of_every_kind_share_a_batch() -> None:
    target = tiny_model()
    kinds: list[tuple[Sampling, str, int | None]] = [
        (Sampling(), "pass", 3),
        (Sampling(temperature=1, seed=1), "pass", 3),
        (Sampling(temperature=1, seed=2), "pass", 1),
        (Sampling(temperature=1, seed=4, repetition_penalty=1.2), "pass", 3),
        (Sampling(temperature=1, seed=5, lenience=0.5), "pass", 2),
        (Sampling(temperature=1, seed=7), "ngram", 4),
        (Sampling(temperature=1, seed=8), "none", 0),
    ]
    with tiny_engine(target, look_ahead=look_ahead(target), slots=3) as engine:
        requests = [
            ask("abcabcab", name=f"{i}", drafter=drafter, gamma=gamma, max_tokens=30, sampling=sampling)
            for i, (sampling, drafter, gamma) in enumerate(kinds)
        ]
        assert_the_same_in_a_batch(engine, requests)


@pytest.mark.slow
def test_sampled_output_has_the_targets_distribution() -> None:
    """The second and third tokens come out of rounds with drafts."""
    target, plain = (tiny_model(sharpness=25.0) for _ in range(2))
    prompt = (104, 105, 33, 10, 7)
    with tiny_engine(target, look_ahead=look_ahead(target), slots=16, queue=3000) as engine:
        events = sampled(engine, "pass", prompt, 2500, max_tokens=4)
    assert any(isinstance(event, Round) and event.accepted for each in events for event in each)
    assert check_distribution(events, prompt, says(plain)) == 3


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    target, folder = tiny_model(), tmp_path / "ahead"
    loaded = look_ahead(target)
    save_look_ahead(folder, loaded.embeddings, target.name, target.fingerprint, {})
    assert torch.equal(load_look_ahead(folder, target).embeddings, loaded.embeddings)
    other = write_tiny_model(tmp_path / "other", seed=5)
    with pytest.raises(EngineError, match="made for tiny, with other weights than other has"):
        assemble(EngineConfig(str(other), Path(), draft=str(folder)), ignore_progress)
    for content, words in ((b"", "is broken"), (None, "is broken")):
        weights = folder / "look-ahead.safetensors"
        weights.unlink() if content is None else weights.write_bytes(content)
        with pytest.raises(EngineError, match=words):
            load_look_ahead(folder, target)
    (folder / "look-ahead.json").write_text("{")
    with pytest.raises(EngineError, match="cannot be read"):
        load_look_ahead(folder, target)
    with tiny_engine(target) as engine:
        last = list(engine.stream(ask("hello", drafter="pass")))[-1]
    assert isinstance(last, Finished)
    assert "distill --kind pass and give them as --draft" in last.message
