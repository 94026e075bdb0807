"""Initialisation of a draft head from the target's own weights.

The head's layer is a copy of one of the target's last layers, and the three linear maps into it are the least-squares
estimate of that layer's input: the residual stream at the next token, from the hidden states at this one and the
embedding of the next. Random weights would first have to learn what the target knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from specchat.engine.drafters.head.network import DraftHead, HeadShape
from specchat.engine.errors import EngineError
from specchat.engine.tools.distill.corpus import Conversation

_DAMPING = 1e-2
"""Ridge term, as a fraction of the mean diagonal."""
_OUTLIER = 5.0
"""Positions whose hidden state is this many times the median norm (attention sinks) are left out of the fit."""
_SPREAD = 0.02
"""Standard deviation of weights without a better initialisation."""


def head_shape(target: Any, name: str) -> HeadShape:
    """Sizes of a draft head for a target, which are those of one of its layers.

    Args:
        target: a network of transformers.
        name: display name, for the error.

    Raises:
        EngineError: the network's architecture is not supported by draft heads.
    """
    (layers,), hidden = last_state(target, name)
    config = target.config.get_text_config()
    heads = config.num_attention_heads
    rope = getattr(config, "rope_parameters", None) or {}
    return HeadShape(
        hidden=hidden,
        heads=heads,
        key_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=getattr(config, "head_dim", None) or hidden // heads,
        intermediate=config.intermediate_size,
        taps=tuple(sorted({min(2, layers - 1), layers // 2, max(layers - 3, 0), layers})),
        rope_theta=float(rope.get("rope_theta", 10_000.0)),
        epsilon=float(getattr(config, "rms_norm_eps", 1e-6)),
    )


def last_state(target: Any, name: str) -> tuple[tuple[int], int]:
    """Depth (as the only tap) and size d of the hidden state that a target's output embeddings score.

    Raises:
        EngineError: the target changes the scores otherwise.
    """
    config = target.config.get_text_config()
    layers, hidden = int(config.num_hidden_layers), int(config.hidden_size)
    output = target.get_output_embeddings()
    if output is None or output.weight.shape[1] != hidden or getattr(output, "bias", None) is not None:
        raise EngineError(
            f"{name} does not score tokens with plain output embeddings: no draft head can be made for it"
        )
    probe = torch.zeros(1, 2, dtype=torch.long, device=target.device)
    with torch.inference_mode():
        out = target(input_ids=probe, output_hidden_states=True, use_cache=False)
        last = out.hidden_states[-1]
        alike = torch.allclose(output(last).float(), out.logits.float(), rtol=0.05, atol=0.05)
    if not alike or len(out.hidden_states) != layers + 1 or last.shape[-1] != hidden:
        raise EngineError(f"{name} changes its scores after the output embeddings: no draft head can be made for it")
    return (layers,), hidden


def initial_head(target: Any, shape: HeadShape, conversations: Iterable[Conversation]) -> DraftHead:
    """Initialised draft head, in float32, on the target's device.

    Args:
        target: a network of transformers.
        shape: as `head_shape` returns it.
        conversations: text to fit the linear maps on; tens of thousands of tokens suffice.
    """
    head = DraftHead(shape).to(target.device)
    with torch.no_grad():
        for weight in head.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=_SPREAD)
        _copy_layer(head, target, shape.taps[-2])
        _fit(head, target.get_input_embeddings().weight, conversations)
    return head


def _copy_layer(head: DraftHead, target: Any, depth: int) -> None:
    """Copy the weights of the target's layer that reads the hidden state of that depth, if shapes match."""
    base = target.base_model
    layer = base.layers[depth] if hasattr(base, "layers") else None
    attention, mlp = getattr(layer, "self_attn", None), getattr(layer, "mlp", None)
    copies: dict[Any, list[Any]] = {
        head.qkv: [getattr(attention, name, None) for name in ("q_proj", "k_proj", "v_proj")],
        head.out: [getattr(attention, "o_proj", None)],
        head.gate_up: [getattr(mlp, name, None) for name in ("gate_proj", "up_proj")],
        head.down: [getattr(mlp, "down_proj", None)],
        head.read_norm: [getattr(layer, "input_layernorm", None)],
        head.mlp_norm: [getattr(layer, "post_attention_layernorm", None)],
        head.score_norm: [getattr(base, "norm", None)],
    }
    for mine, theirs in copies.items():
        weights = [getattr(module, "weight", None) for module in theirs]
        if all(weight is not None for weight in weights):
            whole = torch.cat([weight.float() for weight in weights if weight is not None])
            if whole.shape == mine.weight.shape:
                mine.weight.copy_(whole)


def _fit(head: DraftHead, embedding: Tensor, conversations: Iterable[Conversation]) -> None:
    """Fit `fuse` together with `token`, and `again`, by least squares."""
    d, taps = head.shape.hidden, len(head.shape.taps)
    width = d * (taps + 1)
    sizes: list[Tensor] = []
    products = torch.zeros(width, width, dtype=torch.float64)
    answers = torch.zeros(width, d, dtype=torch.float64)
    for talk in conversations:
        tapped = talk.features.float().reshape(-1, taps, d)
        embedded = embedding[talk.tokens.long().to(embedding.device)].float().cpu()
        known = torch.cat([head.normed(tapped)[:-1].flatten(1), head.normed(embedded)[1:]], dim=1)
        wanted = tapped[1:, -2]
        sizes.append(tapped[:, -1].pow(2).mean().sqrt())
        size = wanted.norm(dim=-1, keepdim=True)
        # The target has not read the last token of a conversation: its state there is 0.
        kept = ((size > 0) & (size < _OUTLIER * size.median()))[:, 0]
        scale = size.median() / size[kept]
        known, wanted = known[kept] * scale, wanted[kept] * scale
        products += (known.T @ known).double()
        answers += (known.T @ wanted).double()
    both = _solve(products, answers)
    head.fuse.weight.copy_(both[:, : d * taps])
    head.token.weight.copy_(both[:, d * taps :])
    own = slice(d * (taps - 1), width)
    # The head's own output is not normed again: its scale is that of the target's last hidden state.
    head.again.weight.copy_(_solve(products[own, own], answers[own])[:, :d] / torch.stack(sizes).mean())


def _solve(products: Tensor, answers: Tensor) -> Tensor:
    damped = products + torch.eye(len(products), dtype=products.dtype) * products.diagonal().mean() * _DAMPING
    weights: Tensor = torch.linalg.solve(damped, answers).float().T
    return weights
