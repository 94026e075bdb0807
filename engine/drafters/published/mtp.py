"""Multi-token-prediction layer of a target, which its own checkpoint contains: Qwen3-Next, Qwen3.5 and its successors.

The layer reads the target's last hidden state, after the final norm, with the embedding of the next token, and predicts
the token after that (DeepSeek-AI 2024, "DeepSeek-V3", section 2.2). For longer drafts it is applied again to its own
output. It is a layer of the target's modelling code; embedding and output layer are the target's. Where the vocabulary
is large it drafts only the tokens that were merged first, which are the most frequent ones (as FastMTP, 2025).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from specchat.engine.backends import attention
from specchat.engine.decoding.backend import Backend
from specchat.engine.drafters.head.folder import LoadedHead
from specchat.engine.drafters.head.layer import HeadLayer, LayeredHead, codes_of, pack_head, target_output
from specchat.engine.drafters.head.torch_layer import LONGEST_LOOK, TorchLayer
from specchat.engine.drafters.published.weights import fill, head_errors
from specchat.engine.errors import check
from specchat.engine.models.checkpoint import MTP, MTP_FILE, weight_files
from specchat.engine.models.convert import convert_gguf
from specchat.engine.models.model_config import cache_argument, read_config
from specchat.engine.models.packed.load import Model
from specchat.engine.progress import ignore_progress

_LAYER = "layers.0."
_MOST_TOKENS = 32_768
"""Largest vocabulary that it drafts from: scoring more costs as much as the layer."""
_EXPERT = re.compile(r"(.*experts)\.(\d+)\.(gate|up|down)_proj\.weight")


def load_mtp(folder: Path, target: Model, origin: Path | None = None) -> LoadedHead:
    """Load the layer of a model folder for the model itself.

    Args:
        folder: of configuration and weights.
        target: the model.
        origin: the file or folder for messages, if it is another.

    Raises:
        EngineError: it is missing, or its tensors have other shapes than the configuration asks for.
    """
    tensors = _with_joined_experts(_read(folder))
    origin = origin or folder
    told = f"{origin} states a multi-token-prediction layer that its files lack: choose a copy of the model with it"
    check(tensors, told)
    with torch.device("meta"):
        head = MtpHead(_layer_config(folder), target.layers)
    head.rotary = type(head.rotary)(head.config)  # its buffers are in no file
    with head_errors(origin):
        fill(head, tensors, _LAYER, "block.")
    size = pack_head(head, target)
    count = min(target.vocab_size, _MOST_TOKENS)
    vocabulary = torch.tensor(sorted({*range(count), *target.eos_ids}), device=target.device)
    return LoadedHead(head, vocabulary, f"MTP layer of {target.name}", size)


def load_mtp_file(file: Path, target: Model) -> LoadedHead:
    """Load the layer from a GGUF file that has nothing else, for the model that it was made with.

    Raises:
        EngineError: as for `load_mtp`; or the file is of another architecture or model.
    """
    with TemporaryDirectory() as made:
        convert_gguf(file, Path(made), ignore_progress, weights=False)
        return load_mtp(Path(made), target, file)


def _read(folder: Path) -> dict[str, Tensor]:
    """Tensors of the layer by name, without the prefix."""
    found: dict[str, Tensor] = {}
    own = folder / MTP_FILE
    for file in [own] if own.is_file() else weight_files(folder):
        with safe_open(file, framework="pt") as opened:
            names = [name for name in opened.keys() if name.startswith(MTP)]  # noqa: SIM118 no mapping
            found |= {name.removeprefix(MTP): opened.get_tensor(name) for name in names}
    return found


def _with_joined_experts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Experts that are stored one by one, joined as in the modelling code: gate and up [E, 2 I, d], down [E, d, I]."""
    joined, experts = {}, dict[str, dict[tuple[int, str], Tensor]]()
    for name, tensor in tensors.items():
        if match := _EXPERT.fullmatch(name):
            experts.setdefault(match[1], {})[int(match[2]), match[3]] = tensor
        else:
            joined[name] = tensor
    for name, parts in experts.items():
        numbers = sorted({number for number, _ in parts})
        if all((number, kind) in parts for number in numbers for kind in ("gate", "up", "down")):
            gates_ups = [torch.cat([parts[number, "gate"], parts[number, "up"]]) for number in numbers]
            joined[f"{name}.gate_up_proj"] = torch.stack(gates_ups)
            joined[f"{name}.down_proj"] = torch.stack([parts[number, "down"] for number in numbers])
    return joined


def _layer_config(folder: Path) -> Any:
    """Configuration of a network that has only this layer."""
    config: Any = read_config(folder).get_text_config()
    config.num_hidden_layers, config.layer_types, config.mlp_only_layers = 1, ["full_attention"], []
    config._attn_implementation = attention.NAME
    return config


class MtpHead(LayeredHead):
    """The layer with what comes before and after it; modules have their published names.

    Args:
        config: of transformers, for one layer.
        layers: of the target.
    """

    def __init__(self, config: Any, layers: int) -> None:
        from transformers import AutoModelForCausalLM

        super().__init__()
        self.taps = (layers,)
        auto: Any = AutoModelForCausalLM
        network = auto.from_config(config).base_model
        d, norm = config.hidden_size, type(network.norm)
        self.config, self.block, self.norm, self.rotary = config, network.layers[0], network.norm, network.rotary_emb
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = (norm(d, eps=config.rms_norm_eps) for _ in range(2))
        self.fc = nn.Linear(2 * d, d, bias=False)
        self.shape = SimpleNamespace(hidden=d, key_heads=config.num_key_value_heads, head_size=config.head_dim)

    def layer_of(self, vocabulary: Tensor, target: Backend) -> tuple[HeadLayer, int]:
        """The layer next to a target, whose output layer scores."""
        output, size = target_output(target, vocabulary, codes_of(self.fc))
        pool = target.cache.pool
        return _BlockLayer(self, output, target.embedding_rows, pool, min(pool.columns, LONGEST_LOOK)), size

    def fused(self, tapped: Tensor) -> Tensor:
        """The state [B, T, d] from the target's last hidden states [B, T, d]."""
        state: Tensor = self.pre_fc_norm_hidden(tapped)
        return state

    again = fused
    """The layer's output, normed, stands for the target's state of the next token."""

    def enter(self, state: Tensor, embedded: Tensor) -> Tensor:
        """The layer's input [B, T, d]: the state at each position with the embedding [B, T, d] of the next token."""
        stream: Tensor = self.fc(torch.cat([self.pre_fc_norm_embedding(embedded), state], dim=-1))
        return stream

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine [1, 1, T, size] of rotary embeddings at positions [1, T]."""
        like = torch.zeros(1, device=positions.device, dtype=torch.float32)
        cosine, sine = self.rotary(like, positions)
        return cosine[:, None], sine[:, None]


class _BlockLayer(TorchLayer):
    """Passes over a layer of modelling code, which attends by itself."""

    def _run(self, stream: Tensor, positions: Tensor, places: tuple[Tensor, Tensor, Tensor], mask: Tensor) -> Tensor:
        heads = self._head.config.num_attention_heads // self._head.config.num_key_value_heads

        def update(key: Tensor, value: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
            return self.stored(places, key, value)

        out = self._head.block(
            stream,
            position_embeddings=self._turns(positions),
            attention_mask=mask.repeat(1, 1, heads, 1),
            **{cache_argument(self._head.block.forward): SimpleNamespace(update=update)},
        )
        scored: Tensor = self._head.norm(out)
        return scored
