"""The loss by its definition, and its gradient by torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from specchat.engine.tools.distill import objective
from specchat.engine.tools.distill.objective import Truth, acceptance_loss, cross_entropy


def _by_cross_entropy(p: Tensor, q: Tensor) -> Tensor:
    return -(p * q.log()).sum(-1)


def _by_overlap(p: Tensor, q: Tensor) -> Tensor:
    return -torch.minimum(p, q).sum(-1).log()


@pytest.mark.parametrize(("loss_of", "defined"), [(cross_entropy, _by_cross_entropy), (acceptance_loss, _by_overlap)])
def test_loss_gradient_and_agreement_are_those_of_the_definition(
    loss_of: Any, defined: Callable[[Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    whole = torch.randn(50, 8)
    vocabulary = whole[:20]
    hidden, drafted = torch.randn(30, 8), torch.randn(30, 8, requires_grad=True)
    counted = torch.rand(30) > 0.3
    truth = Truth(hidden, (hidden @ whole.T).logsumexp(-1), counted)
    monkeypatch.setattr(objective, "_CHUNK", 7)
    loss, agreement = loss_of(drafted, vocabulary, truth)
    loss.backward()

    again = drafted.detach().clone().requires_grad_()
    p = (hidden @ whole.T).softmax(-1)[:, :20][counted]
    q = (again @ vocabulary.T).softmax(-1)[counted]
    expected = defined(p, q).mean()
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(drafted.grad, again.grad)
    torch.testing.assert_close(agreement.overlap, torch.minimum(p, q).sum())
    assert agreement.top == (p.argmax(-1) == q.argmax(-1)).sum()
    assert agreement.count == counted.sum()
