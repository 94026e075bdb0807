"""`scripts.train_head` on the CPU: its text is the target's, and its loss that of `specchat distill`."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from scripts.train_head import check, choice, learner, parts, text, writer
from specchat.engine import EngineError, Outbox, Request
from specchat.engine.models.load import LoadedModel, load_model
from specchat.engine.progress import ignore_progress
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.tools.distill import eagle, trainer
from tests.engine.tiny import tiny_head
from tests.tiny_model import write_tiny_model


def written(folder: Path, patch: pytest.MonkeyPatch) -> tuple[LoadedModel, text.Text]:
    """A target that ends its turns early, and a wave of its text with the penalties of the default chat."""
    patch.setattr(writer, "SETTINGS", (0.0, 0.0, 1.0))
    (folder / "prompts.jsonl").write_text('{"turns": ["the fox", "the dog"]}\n{"turns": ["jumps"]}')
    model = load_model(write_tiny_model(folder / "tiny"), torch.device("cpu"), torch.float32, ignore_progress)
    model = replace(model, eos_ids=frozenset(range(2, model.vocab_size, 16)))
    given = parts.parts_of(folder / "prompts.jsonl", model, model.device)
    torch.manual_seed(0)
    writing = writer.Writer(model, eagle.head_shape(model.model, model.name).taps, given, rows=6, length=160)
    writing.wave()  # the next one overwrites it
    return model, writing.wave()


def chosen(model: LoadedModel, before: list[int], scores: torch.Tensor) -> torch.Tensor:
    """The product's choice after these tokens, from logits [1, 1, V]."""
    request, words = Request("r", prompt_ids=tuple(before), sampling=choice.CHAT), Detokenizer(model.tokenizer, ())
    row = SequenceState(request, Outbox(), 0, before, len(before), cached=0, seed=0, text=words, drafter="none")
    adjustment = Penalties(1, len(before), model.device).of([row])
    return adjustment.apply(scores, torch.zeros(1, 0, dtype=torch.long), torch.ones(1, 1, 1).bool()).argmax()


def test_text_is_what_the_target_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, wave = written(tmp_path, monkeypatch)
    talks = [(row, wave.begin[row] == first) for row in range(6) for first in wave.begin[row].unique()]
    assert len(talks) > 12
    assert wave.counted.sum() > 200
    for talk in talks:
        tokens, out = wave.tokens[talk], model.model(input_ids=wave.tokens[talk][None], output_hidden_states=True)
        assert_close(wave.log_total[talk], out.logits[0].logsumexp(-1), rtol=1e-4, atol=1e-4)
        assert_close(wave.tapped[talk], torch.cat(out.hidden_states, -1)[0], rtol=1e-3, atol=1e-3)
        for i in wave.counted[talk].nonzero()[:, 0].tolist():
            assert chosen(model, tokens[:i].tolist(), out.logits[:, i - 1 : i]) == tokens[i]
    check.check_wave(wave, model.model)
    wave.log_total[0, 0] = torch.nan
    with pytest.raises(EngineError, match="nothing was trained"):
        check.check_wave(wave, model.model)


def test_loss_is_that_of_distill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, wave = written(tmp_path, monkeypatch)
    wave.begin.zero_()  # as if each row were one conversation
    head, vocabulary = (loaded := tiny_head(model)).head.requires_grad_(True), loaded.vocabulary
    learning = learner.Learner(head, model.model, vocabulary, wave)
    mine, rates, _ = learning.loss(wave, noise=0.0, share=1.0)
    gradients = torch.autograd.grad(mine, list(head.parameters()))
    batch = trainer.Batch(wave.tokens, wave.counted, wave.tapped, wave.log_total)
    drafts = eagle.unroll(head, model.model.get_input_embeddings().weight, batch, learner.DEPTH)
    scores = model.model.get_output_embeddings().weight[vocabulary]
    loss, expected = trainer.positions_loss(drafts, scores, batch, trainer.acceptance_loss)
    assert_close(rates, expected)
    assert_close(gradients, torch.autograd.grad(loss, list(head.parameters())), rtol=1e-3, atol=1e-6)
