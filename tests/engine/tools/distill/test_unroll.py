"""What is trained is what drafts: the unrolled head and the drafter's memory give the same."""

from __future__ import annotations

import torch

from specchat.engine.decoding.tree import chain
from specchat.engine.drafters.head.memory import HeadMemory
from specchat.engine.drafters.head.torch_layer import TorchLayer
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.tools.distill import unroll as unrolling
from specchat.engine.tools.distill.batch import Batch
from specchat.engine.tools.distill.objective import Agreement, Truth
from specchat.engine.tools.distill.unroll import unroll
from tests.engine.tiny import tiny_head, tiny_model


def test_every_step_scores_what_the_drafter_would(monkeypatch: object) -> None:
    model = tiny_model()
    made = tiny_head(model)
    head, shape = made.head, made.head.shape
    embedding = model.model.get_input_embeddings().weight
    torch.manual_seed(3)
    tokens = torch.randint(0, 250, (1, 20))
    tapped = torch.randn(1, 20, shape.hidden * len(shape.taps))
    seen: list[torch.Tensor] = []

    def keep(drafted: torch.Tensor, _: torch.Tensor, truth: Truth) -> tuple[torch.Tensor, Agreement]:
        seen.append(drafted)
        zero = torch.zeros(())
        return drafted.sum() * 0, Agreement(zero, zero, truth.counted.sum())

    monkeypatch.setattr(unrolling, "acceptance_loss", keep)  # type: ignore[attr-defined]
    depth = 3
    unroll(
        head, embedding, embedding, Batch(tokens, torch.ones(1, 20, dtype=torch.bool), tapped, tapped[..., 0]), depth
    )

    for anchor in (0, 5, 15):
        # The drafter stands where the target has read up to the anchor and has given one token more.
        row = SequenceState(None, None, 0, tokens[0, : anchor + 2].tolist(), 1, 0, 0, None, "head")  # type: ignore[arg-type]
        layer = TorchLayer(head, torch.nn.Identity(), model.model.get_input_embeddings(), 1, 32, window=64)
        memory = HeadMemory(layer, 1)
        memory.admit(row)
        memory.absorb([row], tapped[:, : anchor + 1])
        memory.read([row])
        torch.testing.assert_close(layer.outcome[0, 0], seen[0][anchor])
        for step in range(1, depth):
            layer.extend([row], chain(depth), (step,), (0,), tokens[:, anchor + 1 + step, None])
            torch.testing.assert_close(layer.outcome[0, 0], seen[step][anchor])
