"""The network of a block drafter in torch.

DFlash (Chen et al. 2026): layers of Qwen3 whose keys and values come from the target's hidden states for the context,
and from the block's own rows for the block. DFlash 2 adds convolutions over the rows around attention and MLP, and a
selector that scores candidates of neighbouring positions. DSpark (Cheng et al. 2026) adds a Markov head, by which the
token before biases the logits of a position, and a head that predicts acceptance. Some have the layers of Gemma 4.

Modules have the names that the authors publish. Letters: B rows of a batch, R rows of a block, T tokens, C columns of
the context, L layers, G key heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from specchat.engine.drafters.block.shape import BlockShape
from specchat.engine.drafters.head.network import Norm

Turns = tuple[Tensor, Tensor]
"""Cosine and sine [B, T, D] at the positions of tokens."""


class BlockNetwork(nn.Module):
    """Context and block passes, and the heads.

    Args:
        shape: its sizes and choices.
    """

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.shape = shape
        d, rank = shape.hidden, shape.markov_rank
        self.fc = nn.Linear(len(shape.taps) * d, d, bias=False)
        self.hidden_norm, self.norm = Norm(d, shape.epsilon), Norm(d, shape.epsilon)
        self.layers = nn.ModuleList((_GemmaLayer if shape.gemma else _Layer)(shape) for _ in range(shape.layers))
        self.markov_head = _MarkovHead(shape) if rank else None
        self.confidence_head = _Confidence(d + rank * shape.confidence_reads_markov) if shape.confidence else None
        self.candidate_selector = _Selector(shape) if shape.selector_rank else None

    @property
    def _attentions(self) -> list[_Attention]:
        return [module for module in self.modules() if isinstance(module, _Attention)]

    @property
    def scoring_heads(self) -> list[nn.Module]:
        """The heads that change the logits of positions, or predict their acceptance."""
        every = (self.markov_head, self.confidence_head, self.candidate_selector)
        return [head for head in every if head is not None]

    @property
    def taps(self) -> tuple[int, ...]:
        """Depths of the target's hidden states that it reads."""
        return self.shape.taps

    def turns(self, positions: Tensor) -> Turns:
        """Cosine and sine [B, T, D], float32, at positions [B, T]."""
        shape = self.shape
        frequencies = torch.tensor(shape.frequencies, device=positions.device)
        angles = positions[..., None].float() * torch.cat([frequencies, frequencies])
        return angles.cos() * shape.rotation_factor, angles.sin() * shape.rotation_factor

    def context(self, states: Tensor, turns: Turns) -> tuple[Tensor, Tensor]:
        """Keys, normed and turned, and values [B, T, L, G, D] of tokens whose target has these hidden states.

        Args:
            states: [B, T, taps x d], the target's, at `taps`, side by side.
            turns: at the tokens' positions.
        """
        x = self.hidden_norm(self.fc(states))
        pairs = [each.keys_and_values(x, turns) for each in self._attentions]
        keys, values = (torch.stack(each, 2) for each in zip(*pairs, strict=True))
        return keys, values

    def block(self, embedded: Tensor, turns: Turns, keys: Tensor, values: Tensor, masks: Sequence[Tensor]) -> Tensor:
        """What each row of the block is scored with [B, R, d], normed.

        Args:
            embedded: [B, R, d], the target's embeddings of the last token and of mask tokens.
            turns: at the rows' positions.
            keys: [B, C, L, G, D], of the context.
            values: [B, C, L, G, D].
            masks: of each layer [B, 1, R, C + R], bool, what each row sees (`visibility`).
        """
        x = embedded * self.shape.embedding_scale
        for i, layer in enumerate(self.layers):
            x = layer(x, turns, keys[:, :, i], values[:, :, i], masks[i])
        out: Tensor = self.norm(x)
        return out

    def visibility(self, ends: Tensor, columns: Tensor) -> list[Tensor]:
        """The masks of `block`, one tensor for all layers that are alike.

        Args:
            ends: [B], int64, positions of the last tokens.
            columns: [B, C], int64, positions of the context, of which the ones before the last token are there.
        """
        shape, made = self.shape, dict[tuple[int | None, bool], Tensor]()
        rows = torch.arange(shape.rows, device=ends.device)
        places = ends[:, None] + rows
        there = (columns < ends[:, None])[:, None]
        for kind in zip(shape.windows, shape.causal, strict=True):
            if kind in made:
                continue
            window, causal = kind
            seen = there.expand(-1, shape.rows, -1)
            if window is not None:
                seen = seen & (places[:, :, None] - columns[:, None] < window)
            distance = rows[:, None] - rows
            own = (distance >= 0) if causal else torch.ones_like(distance, dtype=torch.bool)
            if window is not None:
                own = own & (distance.abs() < window)
            made[kind] = torch.cat([seen, own.expand(len(ends), -1, -1)], -1)[:, None]
        return [made[kind] for kind in zip(shape.windows, shape.causal, strict=True)]

    def logits(self, scored: Tensor) -> Tensor:
        """The logits of rows [..., V'], float32, from the output layer's results [..., V']."""
        shape, logits = self.shape, scored.float() * self.shape.logit_scale
        return shape.softcap * (logits / shape.softcap).tanh() if shape.softcap else logits

    def after(self, logits: Tensor, outcome: Tensor, previous: Tensor) -> Tensor:
        """Logits [B, V'] of one position after the token before it.

        Args:
            logits: [B, V'], of its row.
            outcome: [B, d], what that row was scored with.
            previous: [B], int64, the token before.
        """
        if self.markov_head is not None:
            logits = logits + self.markov_head(previous, outcome).float()
        if self.candidate_selector is not None:
            logits = self.candidate_selector(logits, outcome, previous)
        return logits

    def confidence(self, outcome: Tensor, previous: Tensor) -> Tensor | None:
        """Probability [B], float32, that a position is accepted if the one before is; None without a head for it.

        Args:
            outcome: [B, d], what its row was scored with.
            previous: [B], int64, the token before.
        """
        if self.confidence_head is None:
            return None
        if self.shape.confidence_reads_markov:
            assert self.markov_head is not None
            outcome = torch.cat([outcome, self.markov_head.markov_w1(previous).to(outcome.dtype)], -1)
        chance: Tensor = self.confidence_head.proj(outcome)[..., 0].float().sigmoid()
        return chance


class _Attention(nn.Module):
    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self._size, self._epsilon, self._gemma, d = shape.head_size, shape.epsilon, shape.gemma, shape.hidden
        asked, known = shape.heads * shape.head_size, shape.key_heads * shape.head_size
        self.q_proj = nn.Linear(d, asked, bias=shape.bias)
        self.k_proj = nn.Linear(d, known, bias=shape.bias)
        self.v_proj = None if shape.values_are_keys else nn.Linear(d, known, bias=shape.bias)
        self.o_proj = nn.Linear(asked, d, bias=shape.bias)
        self.q_norm, self.k_norm = (Norm(shape.head_size, shape.epsilon) for _ in range(2))

    def keys_and_values(self, x: Tensor, turns: Turns) -> tuple[Tensor, Tensor]:
        """Keys, normed and turned, and values [B, T, G, D]."""
        key = self.k_proj(x).unflatten(-1, (-1, self._size))
        value = key if self.v_proj is None else self.v_proj(x).unflatten(-1, (-1, self._size))
        if self._gemma:
            value = functional.rms_norm(value, (self._size,), eps=self._epsilon)
        return _turned(self.k_norm(key), turns), value

    def forward(self, x: Tensor, turns: Turns, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        query = _turned(self.q_norm(self.q_proj(x).unflatten(-1, (-1, self._size))), turns)
        key, value = self.keys_and_values(x, turns)
        key, value = torch.cat([keys, key], 1), torch.cat([values, value], 1)
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
        scale = 1.0 if self._gemma else None
        attended = functional.scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=True)
        out: Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return out


class _Mlp(nn.Module):
    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        d, inner = shape.hidden, shape.intermediate
        self._activation = partial(functional.gelu, approximate="tanh") if shape.gemma else functional.silu
        self.gate_proj, self.up_proj = (nn.Linear(d, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self._activation(self.gate_proj(x)) * self.up_proj(x))
        return out


class _Convolution(nn.Module):
    """Before and after a part of a layer, each row becomes a sum of itself and the rows before it.

    The weights of a dimension are the network's and some that the row's input gives to its group of dimensions.
    """

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self._kernel, self._group = shape.kernel, shape.kernel_group
        self.base_kernel = nn.Parameter(torch.empty(2, shape.kernel, shape.hidden))
        groups = shape.hidden // shape.kernel_group
        self.kernel_projection = nn.Linear(shape.hidden, 2 * shape.kernel * groups, bias=False)

    def forward(self, x: Tensor, part: nn.Module, *others: object) -> Tensor:
        """What the part makes of x [B, R, d], with convolutions before and after it."""
        before, after = self.kernel_projection(x).unflatten(-1, (2, self._kernel, -1)).unbind(2)
        return self._mixed(part(self._mixed(x, before, 0), *others), after, 1)

    def _mixed(self, x: Tensor, dynamic: Tensor, side: int) -> Tensor:
        """The sums [B, R, d]; `dynamic` [B, R, kernel, groups]."""
        weight = dynamic.repeat_interleave(self._group, -1) + self.base_kernel[side].to(x.dtype)
        padded = functional.pad(x, (0, 0, self._kernel - 1, 0))
        shifted = [padded[:, self._kernel - 1 - tap :][:, : x.shape[1]] for tap in range(self._kernel)]
        return (torch.stack(shifted, 2) * weight).sum(2)


class _Layer(nn.Module):
    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.self_attn, self.mlp = _Attention(shape), _Mlp(shape)
        self.input_layernorm, self.post_attention_layernorm = (Norm(shape.hidden, shape.epsilon) for _ in range(2))
        self.attention_conv, self.mlp_conv = (_Convolution(shape) if shape.kernel else None for _ in range(2))

    def forward(self, x: Tensor, turns: Turns, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        normed = self.input_layernorm(x)
        if self.attention_conv is None or self.mlp_conv is None:
            x = x + self.self_attn(normed, turns, keys, values, mask)
            out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        else:
            x = x + self.attention_conv(normed, self.self_attn, turns, keys, values, mask)
            out = x + self.mlp_conv(self.post_attention_layernorm(x), self.mlp)
        return out


class _GemmaLayer(nn.Module):
    """A layer of Gemma 4, with norms after attention and MLP too, and a factor on its output."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.self_attn, self.mlp = _Attention(shape), _Mlp(shape)
        self.input_layernorm, self.post_attention_layernorm = (Norm(shape.hidden, shape.epsilon) for _ in range(2))
        self.pre_feedforward_layernorm = Norm(shape.hidden, shape.epsilon)
        self.post_feedforward_layernorm = Norm(shape.hidden, shape.epsilon)
        self.layer_scalar = nn.Parameter(torch.empty(1))

    def forward(self, x: Tensor, *others: Tensor | Turns) -> Tensor:
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), *others))
        out: Tensor = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return out * self.layer_scalar


class _MarkovHead(nn.Module):
    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        rank = shape.markov_rank
        self.markov_w1 = nn.Embedding(shape.vocabulary, rank)
        self.markov_w2 = nn.Linear(rank, shape.draft_vocabulary, bias=False)
        self.gate_proj = nn.Linear(shape.hidden + rank, rank) if shape.markov_gate else None

    def forward(self, previous: Tensor, outcome: Tensor) -> Tensor:
        """What tokens [B] add to the logits after them [B, V'], the logits of `outcome` [B, d]."""
        known = self.markov_w1(previous)
        if self.gate_proj is not None:
            known = known * self.gate_proj(torch.cat([outcome, known.to(outcome.dtype)], -1)).sigmoid()
        bias: Tensor = self.markov_w2(known)
        return bias


class _Confidence(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 1)


class _Selector(nn.Module):
    """score(candidate) = its logit + ⟨P[token before] ⊙ W h, S[candidate]⟩; other tokens are not drafted."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.candidates = min(shape.candidates, shape.draft_vocabulary)
        self.predecessor_codebook, self.successor_codebook = (
            nn.Embedding(shape.vocabulary, shape.selector_rank) for _ in range(2)
        )
        self.hidden_projection = nn.Linear(shape.hidden, shape.selector_rank, bias=False)

    def forward(self, logits: Tensor, outcome: Tensor, previous: Tensor) -> Tensor:
        """Logits [B, V] with the scores of the candidates, and the least finite number elsewhere."""
        best = logits.topk(self.candidates, -1)
        context = self.predecessor_codebook(previous) * self.hidden_projection(outcome)
        edges = (self.successor_codebook(best.indices) @ context[..., None]).squeeze(-1)
        others = torch.full_like(logits, torch.finfo(logits.dtype).min)
        return others.scatter_(-1, best.indices, best.values + edges.float())


def _turned(x: Tensor, turns: Turns) -> Tensor:
    """x [B, T, heads, D] turned."""
    cosine, sine = (part[:, :, None].to(x.dtype) for part in turns)
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine
