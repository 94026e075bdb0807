"""Gemma 4 assistant: four layers that draft with the keys and values of their target (`Gemma4AssistantForCausalLM`).

The assistant caches nothing. It reads the embedding of a row's last token and the target's last hidden state
before it, attends to what the target's last layer of each type has cached, and stays at the same position while it
drafts: its output, projected to the target's width, takes the place of the hidden state for the next token. With
ordered embeddings it scores only the tokens of the likeliest clusters; it never drafts the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from specchat.engine.backends import attention
from specchat.engine.cache.kv_cache import lazy_zeros
from specchat.engine.decoding.backend import Backend
from specchat.engine.drafters.head.folder import LoadedHead
from specchat.engine.drafters.head.layer import HeadLayer, LayeredHead, Level, Rows, pack_head
from specchat.engine.drafters.published.find import CONFIG
from specchat.engine.drafters.published.weights import UnfitError, fill, head_errors, hidden_size, read_tensors, require
from specchat.engine.errors import first_line
from specchat.engine.models.checkpoint import display_name, read_json
from specchat.engine.models.packed.load import Model, PackedModel

_TYPES = ("full_attention", "sliding_attention")
_UNIFIED = {"gemma4_unified_text": {"hidden_size_per_layer_input": 0, "sliding_window": 1024}}
"""What the configuration of Gemma 4 12B means by settings that it does not state, where Gemma 4's means another."""


def load_assistant(folder: Path, target: Model) -> LoadedHead:
    """Load an assistant for its target.

    Raises:
        EngineError: it was made for another target, or is broken.
    """
    with head_errors(folder):
        head = _read(folder, target)
    size = pack_head(head, target)
    return LoadedHead(head, torch.arange(target.vocab_size, device=target.device), display_name(folder), size)


def _read(folder: Path, target: Model) -> AssistantHead:
    """The network of an assistant with its weights.

    Raises:
        UnfitError: it was made for another target, or is broken.
    """
    config, hidden = read_json(folder / CONFIG), hidden_size(target)
    width, tokens = config.get("backbone_hidden_size"), config.get("text_config", {}).get("vocab_size")
    require(
        (width, tokens) == (hidden, target.vocab_size),
        f"was made for a target of hidden size {width} and {tokens} tokens, and {target.name} has {hidden} and "
        f"{target.vocab_size}: choose the assistant of this target",
    )
    layers = _sharing_layers(target)
    both = " and ".join(_TYPES)
    require({*layers} == {*_TYPES}, f"needs a target with {both}, and {target.name} is another: choose another")
    tensors = read_tensors(folder)
    tensors.pop("lm_head.weight", None)  # the same as the embedding
    try:
        with torch.device("meta"):
            head = AssistantHead(config, layers, target.layers)
    except Exception as error:  # the configuration's checks raise various exceptions
        raise UnfitError(f"has a config.json that cannot be used ({first_line(error)}): fetch it again") from None
    head.model.rotary_emb = type(head.model.rotary_emb)(head.text)  # its buffers are in no file
    head.model.embed_tokens.register_buffer("embed_scale", torch.tensor(head.text.hidden_size**0.5), persistent=False)
    fill(head, tensors, "model.", "model.")
    return head


def _sharing_layers(target: Model) -> dict[str, int]:
    """The target's last layer of each type with its own keys and values."""
    if isinstance(target, PackedModel):
        described = target.described
        caching = [layer for layer in range(described.layers) if described.layer_shape(layer).source is None]
        return {_TYPES[described.windows[layer] > 0]: layer for layer in caching}
    config: Any = target.model.config.get_text_config()
    own = config.num_hidden_layers - (getattr(config, "num_kv_shared_layers", 0) or 0)
    return {kind: layer for layer, kind in enumerate((getattr(config, "layer_types", None) or ())[:own])}


class AssistantHead(LayeredHead):
    """The network of an assistant; modules have their published names.

    Args:
        config: its config.json.
        sharing: by layer type, the target's layer whose keys and values it reads.
        layers: of the target.
    """

    def __init__(self, config: Mapping[str, Any], sharing: dict[str, int], layers: int) -> None:
        from transformers import Gemma4TextConfig
        from transformers.models.gemma4.modeling_gemma4 import Gemma4TextModel

        class AllShared(Gemma4TextConfig):  # type: ignore[no-untyped-call]
            """Configuration in which no layer has keys and values, which some versions of transformers refuse."""

            kv_sharing_modes = property(lambda self: ["reuse"] * self.num_hidden_layers)

        super().__init__()
        self.sharing, self.taps = sharing, (layers,)
        stated = config["text_config"]
        self.text: Any = AllShared(**_UNIFIED.get(stated.get("model_type"), {}) | stated)
        self.text._attn_implementation = attention.NAME
        small, wide = self.text.hidden_size, config["backbone_hidden_size"]
        self.model = Gemma4TextModel(self.text)
        self.pre_projection = nn.Linear(2 * wide, small, bias=False)
        self.post_projection = nn.Linear(small, wide, bias=False)
        self.masked_embedding = _Clusters(config, self.text) if config.get("use_ordered_embeddings") else None

    def layer_of(self, vocabulary: Tensor, target: Backend) -> tuple[HeadLayer, int]:  # noqa: ARG002 it drafts all
        """The layer next to a target."""
        return _AssistantLayer(self, target), 0


class _Clusters(nn.Module):
    """Clusters of the vocabulary.

    Args:
        config: of the assistant.
        text: of its network.
    """

    token_ordering: Tensor

    def __init__(self, config: Mapping[str, Any], text: Any) -> None:
        super().__init__()
        self.count, self.chosen = config["num_centroids"], config["centroid_intermediate_top_k"]
        self.centroids = nn.Linear(text.hidden_size, self.count, bias=False)
        self.register_buffer("token_ordering", torch.empty(text.vocab_size, dtype=torch.long))

    def tokens_of(self, outcome: Tensor) -> Tensor:
        """Tokens [B, P, n] of the clusters whose centroids are most like an output [B, P, d]."""
        best = self.centroids(outcome).topk(self.chosen, dim=-1).indices
        return self.token_ordering.view(self.count, -1)[best].flatten(-2)


class _AssistantLayer(HeadLayer):
    """An assistant in every slot of its target; the cache of which it only reads.

    Args:
        head: the assistant.
        target: whose cache it reads.
    """

    def __init__(self, head: AssistantHead, target: Backend) -> None:
        self._head, self._cache, self._embed = head, target.cache, target.embedding_rows
        like, width = head.model.norm.weight, head.post_projection.out_features
        self._scale = like.new_tensor(width**0.5)
        pool = target.cache.pool
        super().__init__([lazy_zeros((pool.slots, pool.columns, width), like.device, like.dtype)], pool, window=1)

    def read(self, rows: Rows, tokens: Tensor) -> Tensor:
        """Run on the last place of every row."""
        return self._run(rows, self.states[rows.slots, (rows.ends - 1).clamp(min=0)][:, None], tokens[:, -1:])

    def follow(self, rows: Rows, level: Level, outcome: Tensor, tokens: Tensor) -> Tensor:  # noqa: ARG002
        """Run on drafted tokens, at the same position."""
        return self._run(rows, self._head.post_projection(outcome), tokens)

    def _run(self, rows: Rows, states: Tensor, tokens: Tensor) -> Tensor:
        """Last hidden states [B, P, d] of the assistant from the target's or its projected own [B, P, D]."""
        (slots, ends, longest), count = rows, tokens.shape[1]
        columns = torch.arange(longest, device=slots.device)
        seen = (columns < ends[:, None]) | (columns == 0)
        near = seen & (columns >= ends[:, None] - 1 - self._head.text.sliding_window)
        shared, masks = {}, {}
        for kind, allowed in zip(_TYPES, (seen, near), strict=True):
            both = self._cache.seen(self._head.sharing[kind], slots, longest)
            key, value = (each.to(states.dtype) for each in both)
            heads = self._head.text.num_attention_heads // key.shape[1]
            shared[kind], masks[kind] = (key, value), allowed[:, None, None].expand(-1, 1, heads * count, -1)
        inputs = self._head.pre_projection(torch.cat([self._embed(tokens) * self._scale, states], dim=-1))
        out: Tensor = self._head.model(
            inputs_embeds=inputs,
            attention_mask=masks,
            position_ids=ends[:, None].expand(-1, count),
            shared_kv_states=shared,
            use_cache=False,
        ).last_hidden_state
        return out

    def score(self, outcome: Tensor, depth: int) -> Tensor:  # noqa: ARG002 it is the same at all depths
        """Logits [B, P, V]; with ordered embeddings only of the tokens in the likeliest clusters."""
        output, clusters = self._head.model.embed_tokens.weight, self._head.masked_embedding
        if clusters is None:
            return functional.linear(outcome, output)
        known = clusters.tokens_of(outcome)
        logits = (output[known] @ outcome[..., None]).squeeze(-1)
        everything = logits.new_full((*logits.shape[:-1], len(output)), torch.finfo(logits.dtype).min)
        return everything.scatter_(-1, known, logits)
