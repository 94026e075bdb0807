"""Reference scores of the target, and how far quantised weights are from float32 computation."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specchat.engine.backends.packed import PackedBackend
from specchat.engine.models.load import LoadedModel
from specchat.engine.models.packed.load import PackedModel

KL_LIMIT, PERPLEXITY_LIMIT = 0.05, 0.01
"""Nats per token; relative difference."""


class Reference:
    """Reference scores of a target."""

    def scores(self, context: Sequence[int], reply: Sequence[int]) -> Tensor:
        """Logits [T, V], float32, from which each of the T tokens of the reply was chosen."""
        raise NotImplementedError

    def distribution(self, context: Sequence[int], temperature: float) -> Tensor:
        """Next-token probabilities [V], float64, on the host, after a context."""
        return (self.scores(context, [0])[0].double() / temperature).softmax(-1).cpu()


class ModelReference(Reference):
    """The target, run without any of the engine's code.

    Args:
        loaded: a model that the engine does not use: the engine changes the attention of its models.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._network: Any = loaded.model
        # Most networks can compute logits of the last positions only, which saves time for a large V.
        self._can_keep = "logits_to_keep" in inspect.signature(self._network.forward).parameters

    @torch.inference_mode()
    def scores(self, context: Sequence[int], reply: Sequence[int]) -> Tensor:
        """Logits [T, V], float32, from which each of the T tokens of the reply was chosen."""
        ids = torch.tensor([[*context, *reply[:-1]]], device=self._network.device)
        keep = {"logits_to_keep": len(reply)} if self._can_keep else {}
        logits: Tensor = self._network(input_ids=ids, use_cache=False, **keep).logits
        return logits[0, -len(reply) :].float()


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Quantised logits against those of the dequantised network, at every token of some replies."""

    format: str
    tokens: int
    kl: float
    """Mean Kullback-Leibler divergence from the reference, nats per token."""
    agreement: float
    """Share of the tokens where both have the same first choice."""
    perplexity: float
    """Of the replies, quantised."""
    reference_perplexity: float

    @property
    def passed(self) -> bool:
        """Whether KL divergence and perplexity are within their limits."""
        change = abs(self.perplexity / self.reference_perplexity - 1)
        return self.kl <= KL_LIMIT and change <= PERPLEXITY_LIMIT


class QuantizedReference(Reference):
    """The packed target, one row at a time, without speculation.

    Args:
        model: the packed model.
        context: tokens of the longest prompt and reply.
    """

    def __init__(self, model: PackedModel, context: int) -> None:
        self._runner = PackedBackend(model, 1, context, 1)

    def scores(self, context: Sequence[int], reply: Sequence[int]) -> Tensor:
        """Logits [T, V], float32, from which each of the T tokens of the reply was chosen."""
        if len(context) > 1:
            self._runner.prefill(torch.tensor([list(context[:-1])]), [0], [0])
        return self._runner.forward(torch.tensor([[context[-1], *reply[:-1]]]), [0], [len(context) - 1])[0]


def measure_fidelity(
    name: str, texts: Sequence[tuple[Sequence[int], Sequence[int]]], ours: QuantizedReference, theirs: ModelReference
) -> Fidelity:
    """Compare quantised and dequantised scores at every token of replies.

    Args:
        name: name of the quantised format.
        texts: prompts and replies, as tokens.
        ours: quantised.
        theirs: the dequantised network.
    """
    divergence = agreed = loss = reference_loss = 0.0
    tokens = 0
    for prompt, reply in texts:
        p, q = (each.scores(prompt, reply).log_softmax(-1) for each in (theirs, ours))
        chosen = torch.tensor(list(reply))[:, None]
        divergence += (p.exp() * (p - q)).sum().item()
        agreed += (p.argmax(-1) == q.argmax(-1)).sum().item()
        reference_loss -= p.gather(1, chosen).sum().item()
        loss -= q.gather(1, chosen).sum().item()
        tokens += len(reply)
    perplexities = [float(torch.tensor(each / tokens).exp()) for each in (loss, reference_loss)]
    return Fidelity(name, tokens, divergence / tokens, agreed / tokens, *perplexities)
