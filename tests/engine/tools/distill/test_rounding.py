"""Rounding while a head is trained: the codes are those that it drafts with, and the full weights learn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from specchat.engine.kernels.library import missing
from specchat.engine.models.packed.quantize import quantized_linear
from specchat.engine.tools.distill.batch import Batch
from specchat.engine.tools.distill.objective import Agreement
from specchat.engine.tools.distill.rounding import round_to_four_bits, rounded
from specchat.engine.tools.distill.trainer import Trainer


def weight() -> Tensor:
    """With groups of equal values and of zeros among the others."""
    drawn = torch.randn(48, 96, generator=torch.Generator().manual_seed(1))
    drawn[3, :32], drawn[5, 32:64], drawn[7] = 0.0, 0.3, 1e-9
    return drawn


@pytest.mark.skipif(missing() is not None, reason=missing() or "")
def test_it_is_what_the_kernels_compute_with() -> None:
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


def test_an_update_is_by_the_gradient_at_rounded_weights(tmp_path: Path) -> None:
    layer = nn.Linear(96, 48, bias=False)
    layer.weight.data = weight()
    seen: list[Tensor] = []

    def loss(batch: Batch) -> tuple[Tensor, list[Agreement]]:  # noqa: ARG001
        seen.append(layer.weight.detach().clone())
        return layer.weight.square().sum(), []

    trainer = Trainer(layer, loss, torch.float32, tmp_path / "training.pt", four_bits=True)
    trainer._update(None, 0.0)  # type: ignore[arg-type]
    assert torch.equal(seen[0], round_to_four_bits(weight()))
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad / layer.weight.grad.norm(), seen[0] / seen[0].norm())
    moved = (layer.weight - weight()).abs()
    assert 0 < moved.max() < 0.01  # from the full weights, by a step of the warm-up
