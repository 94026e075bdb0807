"""Distilling look-ahead embeddings for a tiny target: they learn, alone, and land in a folder that `--draft` loads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specchat.engine import EngineConfig
from specchat.engine.progress import ignore_progress
from specchat.engine.tools.distill import DistillOptions, distill, text
from specchat.engine.tools.distill.objective import Batch
from specchat.engine.tools.distill.parallel import POSITIONS, PassRecipe
from specchat.engine.worker.assembly import assemble
from tests.engine.tiny import tiny_model
from tests.tiny_model import write_tiny_model


def test_embeddings_learn_what_follows_and_the_target_stays_as_it_is() -> None:
    target, plain = tiny_model(), tiny_model()
    with torch.inference_mode():
        tokens = torch.randint(0, 250, (8, 4))
        for _ in range(40):
            tokens = torch.cat([tokens, plain.model(tokens).logits[:, -1:].argmax(-1)], 1)
        out = plain.model(tokens, output_hidden_states=True)
    counted = torch.ones_like(tokens, dtype=torch.bool)
    batch = Batch(tokens.clone(), counted, out.hidden_states[-1].clone(), out.logits.logsumexp(-1).clone())
    trainee = PassRecipe(target).trainee(torch.arange(target.vocab_size), None)
    optimiser = torch.optim.AdamW(trainee.network.parameters(), lr=trainee.rate)
    losses = []
    for _ in range(40):
        loss, agreements = trainee.loss(batch)
        losses.append(float(loss.detach()))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert len(agreements) == POSITIONS
    assert sum(losses[-5:]) < 0.97 * sum(losses[:5])
    mine, theirs = target.model.state_dict(), plain.model.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    loaded = trainee.assemble(EngineConfig("tiny", Path(), slots=1, context=128))
    assert next(iter(loaded.drafters)) == "pass"


@torch.no_grad()
def test_an_embedding_is_trained_on_what_it_will_see() -> None:
    """The loss at one place is that of a text which ends there, with the embeddings behind it."""
    target, plain = tiny_model(), tiny_model()
    tokens = torch.randint(0, 250, (2, 8))
    out = plain.model(tokens, output_hidden_states=True)
    batch = Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), out.hidden_states[-1], out.logits.logsumexp(-1))
    trainee = PassRecipe(target).trainee(torch.arange(target.vocab_size), None)
    torch.nn.init.normal_(trainee.network.weight)
    loss, _ = trainee.loss(batch)
    total = torch.zeros(POSITIONS)
    places = range(8 - POSITIONS - 1)
    for row in range(2):
        for place in places:
            seen = plain.model.get_input_embeddings()(tokens[row, : place + 1])
            said = plain.model(inputs_embeds=torch.cat([seen, trainee.network.weight])[None]).logits[0]
            for position in range(POSITIONS):
                p = out.logits[row, place + 1 + position].softmax(-1)
                total[position] -= (p * said[place + 1 + position].log_softmax(-1)).sum() / (2 * len(places))
    weights = torch.tensor([0.8**position for position in range(POSITIONS)])
    assert float(loss) == pytest.approx(float((total * weights).sum() / weights.sum()), rel=1e-4)


@pytest.mark.slow
def test_a_folder_that_draft_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_LEAST_TOKENS", 300)
    target, out = write_tiny_model(tmp_path / "tiny", initializer_range=0.2), tmp_path / "ahead"
    made = distill(DistillOptions(tmp_path, str(target), out, "pass", 0.15), ignore_progress)
    assert made.steps >= 1
    assert made.reached["greedy"].emitted_per_round >= 1
    assembly = assemble(EngineConfig(str(target), Path(), draft=str(out)), ignore_progress)
    assert next(iter(assembly.drafters)) == "pass"
