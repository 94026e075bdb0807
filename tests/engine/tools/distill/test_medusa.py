"""Distilling Medusa heads for a tiny target: they learn, and land in a folder that `--draft` loads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specchat.engine import EngineConfig, EngineError
from specchat.engine.progress import ignore_progress
from specchat.engine.research.medusa import MedusaHeads
from specchat.engine.tools.distill import DistillOptions, distill, text
from specchat.engine.tools.distill.objective import Batch
from specchat.engine.tools.distill.parallel import HEADS, MedusaRecipe
from specchat.engine.worker.assembly import assemble
from tests.engine.tiny import ask, ids_of, tiny_engine, tiny_model
from tests.tiny_model import write_tiny_model


def test_heads_learn_what_follows_and_leave_greedy_output_as_it_is() -> None:
    """On greedy text of the target itself, all heads come to say more than at first."""
    target, plain = tiny_model(), tiny_model()  # a runner changes its model's attention
    with torch.inference_mode():
        tokens = torch.randint(0, 250, (8, 4))
        for _ in range(40):
            tokens = torch.cat([tokens, plain.model(tokens).logits[:, -1:].argmax(-1)], 1)
        out = plain.model(tokens, output_hidden_states=True)
    batch = Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), out.hidden_states[-1], out.logits.logsumexp(-1))
    recipe = MedusaRecipe(target)
    trainee = recipe.trainee(torch.arange(target.vocab_size), None)
    optimiser = torch.optim.AdamW(trainee.network.parameters(), lr=1e-2)
    shares = []
    for _ in range(60):
        loss, agreements = trainee.loss(batch)
        shares.append([float(each.overlap / each.count) for each in agreements])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert len(shares[0]) == HEADS
    assert all(last > first + 0.03 for first, last in zip(shares[0], shares[-1], strict=True))
    head = trainee.assemble(EngineConfig("tiny", Path(), slots=1, context=128)).parts["head"]
    with tiny_engine(target, head=head) as engine:
        assert ids_of(list(engine.stream(ask("hello", drafter="head", gamma=4, max_tokens=40)))) == ids_of(
            list(engine.stream(ask("hello", drafter="none", max_tokens=40)))
        )


@pytest.mark.slow
def test_a_folder_that_draft_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_LEAST_TOKENS", 300)
    target, out = write_tiny_model(tmp_path / "tiny", initializer_range=0.2), tmp_path / "heads"
    made = distill(DistillOptions(tmp_path, str(target), out, "medusa", 0.15), ignore_progress)
    assert (made.noun, made.target) == ("Medusa heads", "tiny")
    assert made.steps >= 1
    assert made.reached["greedy"].emitted_per_round >= 1
    assembly = assemble(EngineConfig(str(target), Path(), draft=str(out)), ignore_progress)
    assert isinstance(assembly.parts["head"].head, MedusaHeads)
    assert sum(file.stat().st_size for file in out.glob("*.safetensors")) < 20_000
    other = write_tiny_model(tmp_path / "other", seed=5)
    with pytest.raises(EngineError, match="made for tiny, with other weights than other has"):
        assemble(EngineConfig(str(other), Path(), draft=str(out)), ignore_progress)
    with pytest.raises(EngineError, match="a draft of the kind medusa, not eagle"):
        distill(DistillOptions(tmp_path, str(target), out, "eagle", 0.15), ignore_progress)
