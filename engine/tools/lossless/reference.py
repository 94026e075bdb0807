"""Reference scores of the target, and how far quantised weights are from float32 computation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specchat.engine.backends.packed import PackedBackend
from specchat.engine.models.load import LoadedModel
from specchat.engine.models.packed.load import PackedModel

KL_LIMIT, PERPLEXITY_LIMIT = 0.05, 0.01
"""Nats per token; relative difference."""
Reference = Callable[[Sequence[int], Sequence[int]], Tensor]
"""Scores of a reply after a context: logits [T, V], float32, from which each of its T tokens was chosen."""


def model_reference(loaded: LoadedModel) -> Reference:
    """The target, run without any of the engine's code.

    Args:
        loaded: a model that the engine does not use: the engine changes the attention of its models.
    """
    network: Any = loaded.model
    # Most networks can compute logits of the last positions only, which saves time for a large V.
    can_keep = "logits_to_keep" in inspect.signature(network.forward).parameters

    @torch.inference_mode()
    def scores(context: Sequence[int], reply: Sequence[int]) -> Tensor:
        ids = torch.tensor([[*context, *reply[:-1]]], device=network.device)
        keep = {"logits_to_keep": len(reply)} if can_keep else {}
        logits: Tensor = network(input_ids=ids, use_cache=False, **keep).logits
        return logits[0, -len(reply) :].float()

    return scores


def quantized_reference(model: PackedModel, context_length: int) -> Reference:
    """The packed target, one row at a time, without speculation.

    Args:
        model: the packed model.
        context_length: tokens of the longest prompt and reply.
    """
    runner = PackedBackend(model, 1, context_length, 1)

    def scores(context: Sequence[int], reply: Sequence[int]) -> Tensor:
        if len(context) > 1:
            runner.prefill(torch.tensor([list(context[:-1])]), [0], [0])
        return runner.forward(torch.tensor([[context[-1], *reply[:-1]]]), [0], [len(context) - 1])[0]

    return scores


def distribution(reference: Reference, context: Sequence[int], temperature: float) -> Tensor:
    """Next-token probabilities [V], float64, on the host, after a context."""
    return (reference(context, [0])[0].double() / temperature).softmax(-1).cpu()


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Quantised logits against logits of the dequantised network, at every token of some replies."""

    format: str
    tokens: int
    kl: float
    """Mean Kullback-Leibler divergence from the reference, nats per token."""
    agreement: float
    """Share of the tokens where both have the same first choice."""
    perplexity: float
    """Perplexity of the replies, quantised."""
    reference_perplexity: float

    @property
    def passed(self) -> bool:
        """Whether KL divergence and perplexity are within their limits."""
        change = abs(self.perplexity / self.reference_perplexity - 1)
        return self.kl <= KL_LIMIT and change <= PERPLEXITY_LIMIT


def measure_fidelity(
    name: str, texts: Sequence[tuple[Sequence[int], Sequence[int]]], ours: Reference, theirs: Reference
) -> Fidelity:
    """Compare quantised and dequantised scores at every token of replies.

    Args:
        name: name of the quantised format.
        texts: prompts and replies, as tokens.
        ours: quantised.
        theirs: the dequantised network.
    """
    divergence = agreed = loss = reference_loss = 0.0
    for prompt, reply in texts:
        p, q = (scores(prompt, reply).log_softmax(-1) for scores in (theirs, ours))
        chosen = torch.tensor(list(reply))[:, None]
        divergence += (p.exp() * (p - q)).sum().item()
        agreed += (p.argmax(-1) == q.argmax(-1)).sum().item()
        reference_loss -= p.gather(1, chosen).sum().item()
        loss -= q.gather(1, chosen).sum().item()
    tokens = sum(len(reply) for _, reply in texts)
    perplexities = [float(torch.tensor(each / tokens).exp()) for each in (loss, reference_loss)]
    return Fidelity(name, tokens, divergence / tokens, agreed / tokens, *perplexities)
