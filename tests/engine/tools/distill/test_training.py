"""What is trained: losses by their definition, rounded weights, first guesses; and each kind learns what it drafts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from specchat.engine import EngineConfig
from specchat.engine.cache.block_pool import BlockPool
from specchat.engine.decoding.tree import chain
from specchat.engine.drafters.head.drafter import HeadMemory
from specchat.engine.drafters.head.torch_layer import TorchLayer
from specchat.engine.models.load import LoadedModel
from specchat.engine.models.packed.quantize import quantized_linear
from specchat.engine.tools.distill import trainer
from specchat.engine.tools.distill.block import ROWS, Block
from specchat.engine.tools.distill.eagle import unroll
from specchat.engine.tools.distill.parallel import POSITIONS, Medusa, Pass
from specchat.engine.tools.distill.trainer import (
    Batch,
    ChunkedLoss,
    Draft,
    acceptance_loss,
    cross_entropy,
    round_to_four_bits,
    rounded,
)
from tests.engine.drafters.heads import scores_along
from tests.engine.rows import row_of
from tests.engine.tiny import ask, ids_of, tiny_engine, tiny_head, tiny_model

SMALL = EngineConfig("tiny", Path(), slots=1, context=128)


def by_cross_entropy(p: Tensor, q: Tensor) -> Tensor:
    return -(p * q.log()).sum(-1)


def by_overlap(p: Tensor, q: Tensor) -> Tensor:
    return -torch.minimum(p, q).sum(-1).log()


@pytest.mark.parametrize(("losses", "defined"), [(cross_entropy, by_cross_entropy), (acceptance_loss, by_overlap)])
def test_loss_gradient_and_acceptance_are_those_of_the_definition(
    losses: Any, defined: Callable[[Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    whole = torch.randn(50, 8)
    vocabulary = whole[:20]
    hidden, drafted = torch.randn(30, 8), torch.randn(30, 8, requires_grad=True)
    counted = torch.rand(30) > 0.3
    monkeypatch.setattr(trainer, "CHUNK", 7)
    totals = (hidden @ whole.T).logsumexp(-1)
    loss, overlap = ChunkedLoss.apply(drafted, vocabulary, hidden, totals, counted, losses)
    loss.backward()

    again = drafted.detach().clone().requires_grad_()
    p = (hidden @ whole.T).softmax(-1)[:, :20][counted]
    q = (again @ vocabulary.T).softmax(-1)[counted]
    expected = defined(p, q).mean()
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(drafted.grad, again.grad)
    torch.testing.assert_close(overlap, torch.minimum(p, q).sum(-1).mean())


def weight() -> Tensor:
    """A matrix that has groups of equal values and of zeros among the others."""
    drawn = torch.randn(48, 96, generator=torch.Generator().manual_seed(1))
    drawn[3, :32], drawn[5, 32:64], drawn[7] = 0.0, 0.3, 1e-9
    return drawn


@pytest.mark.usefixtures("kernels")
def test_rounded_weights_are_what_the_kernels_compute_with() -> None:
    assert torch.equal(round_to_four_bits(weight()), quantized_linear(weight(), method="q4").weight)


def test_full_weights_come_back_also_after_an_error() -> None:
    layer, norm = nn.Linear(96, 48), nn.LayerNorm(96)
    network = nn.Sequential(norm, layer, nn.Linear(30, 4))  # whose groups of 32 do not divide
    before = [parameter.detach().clone() for parameter in network.parameters()]

    def cut_off() -> None:
        with rounded(network):
            assert torch.equal(layer.weight, round_to_four_bits(before[2]))
            raise RuntimeError("cut off")

    with pytest.raises(RuntimeError, match="cut off"):
        cut_off()
    assert all(map(torch.equal, network.parameters(), before))


def test_every_step_of_a_head_scores_what_the_drafter_would() -> None:
    model = tiny_model()
    head, embeddings = tiny_head(model).head, model.model.get_input_embeddings()
    torch.manual_seed(3)
    tokens, depth = torch.randint(0, 250, (1, 20)), 3
    tapped = torch.randn(1, 20, head.shape.hidden * len(head.shape.taps))
    steps = unroll(head, embeddings.weight, Batch(tokens, tokens >= 0, tapped, tapped[..., 0]), depth)
    seen = [drafted[0] for drafted, _ in steps]
    for anchor in (0, 5, 15):
        # The drafter stands where the target has read up to the anchor and has given one token more.
        row = row_of(tokens[0, : anchor + 2].tolist())
        layer = TorchLayer(head, torch.nn.Identity(), embeddings, BlockPool(1, 32), window=64)
        memory = HeadMemory(layer, 1)
        memory.admit(row)
        memory.absorb([row], tapped[:, : anchor + 1])
        drafted = tokens[:, anchor + 2 : anchor + 2 + depth]
        for step, scores in enumerate(scores_along(layer, memory, [row], chain(depth), drafted)):
            torch.testing.assert_close(scores[0, 0], seen[step][anchor])


def test_a_position_attends_to_no_conversation_before_its_own() -> None:
    model = tiny_model()
    head, embeddings = tiny_head(model).head, model.model.get_input_embeddings().weight
    torch.manual_seed(3)
    tokens, begins = torch.randint(0, 250, (2, 30)), torch.tensor([[0] * 12 + [12] * 18, [0] * 30])
    tapped = torch.randn(2, 30, head.shape.hidden * len(head.shape.taps))
    together = unroll(head, embeddings, Batch(tokens, tokens >= 0, tapped, tapped[..., 0]), 3, begin=begins)
    later = Batch(tokens[:1, 12:], tokens[:1, 12:] >= 0, tapped[:1, 12:], tapped[:1, 12:, 0])
    for (mine, _), (alone, _) in zip(together, unroll(head, embeddings, later, 3), strict=True):
        torch.testing.assert_close(mine[0, 12:], alone[0])


def batch_of(model: LoadedModel, tokens: Tensor) -> Batch:
    with torch.no_grad():
        out = model.model(tokens, output_hidden_states=True)
    return Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), out.hidden_states[-1], out.logits.logsumexp(-1))


def trained(draft: Draft, plain: LoadedModel, updates: int, rate: float) -> tuple[list[float], list[list[float]]]:
    """Losses and acceptance rates of `updates` updates on greedy text of the target."""
    tokens = torch.randint(0, 250, (8, 4))
    for _ in range(40):
        with torch.no_grad():
            tokens = torch.cat([tokens, plain.model(tokens).logits[:, -1:].argmax(-1)], 1)
    batch = batch_of(plain, tokens)
    draft.begin(torch.arange(plain.vocab_size))
    optimiser = torch.optim.AdamW(draft.network.parameters(), lr=rate or draft.rate)
    losses, rates = [], []
    for _ in range(updates):
        loss, reached = draft.loss(batch)
        losses.append(float(loss.detach()))
        rates.append(reached.tolist())
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert len(rates[0]) == POSITIONS
    return losses, rates


def test_medusa_heads_learn_what_follows_and_leave_greedy_output_as_it_is() -> None:
    target, plain = tiny_model(), tiny_model()  # a runner changes its model's attention
    draft = Medusa(target)
    _, rates = trained(draft, plain, 60, 1e-2)
    assert all(last > first + 0.03 for first, last in zip(rates[0], rates[-1], strict=True))
    with tiny_engine(target, head=draft.assemble(SMALL).parts["head"]) as engine:
        drafted, alone = (
            ids_of(engine.stream(ask("hello", drafter=drafter, gamma=4, max_tokens=40))) for drafter in ("head", "none")
        )
    assert drafted == alone


def block_batch(draft: Block, model: LoadedModel, tokens: Tensor) -> Batch:
    with torch.no_grad():
        out = model.model(tokens, output_hidden_states=True)
    tapped = torch.cat([out.hidden_states[depth] for depth in draft.taps], -1)
    return Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), tapped, out.logits.logsumexp(-1))


@torch.no_grad()
def test_a_block_is_trained_on_what_it_will_see() -> None:
    """The target's states before its anchor and its own rows; the loss is that of its definition."""
    target = tiny_model()
    draft = Block(target)
    torch.manual_seed(1)
    batch = block_batch(draft, tiny_model(), torch.randint(0, 250, (2, 20)))
    known = torch.arange(1, target.vocab_size, 2)
    draft.begin(known)
    for weight in draft.network.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    network, shape, anchors = draft.finished(), draft.shape, [3, 9, 4]
    outcome = draft.blocks(batch, torch.tensor(anchors))
    table = target.model.get_input_embeddings()
    for place, anchor in enumerate(anchors):
        columns, rows = torch.arange(anchor)[None], torch.arange(anchor, anchor + ROWS)[None]
        keys, values = network.context(batch.tapped[:, :anchor], network.turns(columns))
        block = torch.full((2, ROWS), shape.mask)
        block[:, 0] = batch.tokens[:, anchor]
        masks = network.visibility(torch.tensor([anchor]), columns)
        alone = network.block(table(block), network.turns(rows), keys, values, masks)
        torch.testing.assert_close(outcome[:, place], alone)
    row, at = 2, anchors[1] + 2
    hidden, previous = batch.tapped[:, at, -draft.hidden :], batch.tokens[:, at]
    loss, rate = draft._judged(outcome[:, 1, row], hidden, batch.log_total[:, at], previous)
    p = tiny_model().model(batch.tokens).logits[:, at].softmax(-1)[:, known]
    q = network.after(outcome[:, 1, row] @ draft.scores.T, outcome[:, 1, row], previous).softmax(-1)
    accepted, chance = torch.minimum(p, q).sum(-1), network.confidence(outcome[:, 1, row], previous)
    doubt = torch.nn.functional.binary_cross_entropy(chance, accepted, reduction="none")
    expected = 0.9 * (p - q).abs().sum(-1) - 0.1 * (p * q.log()).sum(-1) + doubt
    torch.testing.assert_close(loss, expected.mean(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(rate, accepted.mean(), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_an_embedding_is_trained_on_what_it_will_see() -> None:
    """The loss at one place is that of a text which ends there, with the embeddings after it."""
    target, plain = tiny_model(), tiny_model()
    tokens = torch.randint(0, 250, (2, 8))
    logits = plain.model(tokens).logits
    draft = Pass(target)
    draft.begin(torch.arange(target.vocab_size))
    torch.nn.init.normal_(draft.network.weight)
    loss, _ = draft.loss(batch_of(plain, tokens))
    total = torch.zeros(POSITIONS)
    places = range(8 - POSITIONS - 1)
    for row in range(2):
        for place in places:
            seen = plain.model.get_input_embeddings()(tokens[row, : place + 1])
            said = plain.model(inputs_embeds=torch.cat([seen, draft.network.weight])[None]).logits[0]
            for position in range(POSITIONS):
                p = logits[row, place + 1 + position].softmax(-1)
                total[position] -= (p * said[place + 1 + position].log_softmax(-1)).sum() / (2 * len(places))
    weights = torch.tensor([0.8**position for position in range(POSITIONS)])
    assert float(loss) == pytest.approx(float((total * weights).sum() / weights.sum()), rel=1e-4)
