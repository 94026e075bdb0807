"""A transformers model with a slot cache: tokens in at given positions, logits out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from engine import attention
from engine.architecture import first_line
from engine.cache import Pass, SlotCache
from engine.compiled_layers import compile_layers
from engine.device import require_memory
from engine.errors import EngineError
from engine.exact_steps import ExactSteps
from engine.forest import Forest, visible
from engine.static_steps import StaticSteps, StaticView
from engine.to_device import to_device
from engine.widths import captured_width, padded_width


class CachedModel:
    """One model and its cache.

    Args:
        model: a causal language model of transformers, in evaluation mode, on its device.
        slots: rows of the cache.
        context: tokens per row.
        overhang: columns beyond the context, for the padding of rows that draft less than their batch.
        taps: hidden states to hand out with every pass, by depth (0 the embeddings, the last one normed).
        exact: whether every pass but the prompt's has one fixed shape (`engine.exact_steps`).

    Raises:
        EngineError: the cache does not fit into memory, or the model cannot be run with one.
    """

    def __init__(
        self, model: Any, slots: int, context: int, overhang: int, taps: Sequence[int] = (), *, exact: bool = False
    ) -> None:
        self.model = model
        self.taps = tuple(taps)
        self.config = model.config.get_text_config()
        self.device: torch.device = model.device
        self.context = context
        self._limit = context - 1
        self._fold = self._use_slot_attention()
        # One column more than ever holds a token: rows that only ride along in a static pass write there.
        self.cache = self._allocate(slots, context + overhang + 1)
        on_gpu = self.device.type == "cuda"
        self._usual: StaticSteps | None = None
        if on_gpu:
            compiled = not exact and compile_layers(model)
            self._usual = StaticSteps(self.cache, self._step, capture=True, compiled=compiled)
        self._static = ExactSteps(self.cache, self._step, capture=on_gpu) if exact else self._usual
        self._not_captured: str | None = None

    @torch.inference_mode()
    def forward(self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor:
        """Feed T tokens per row and score what may follow each.

        Args:
            tokens: [B, T], int64, on the device.
            slots: the slot of each row.
            starts: the position of each row's first token.

        Returns:
            Logits [B, T, V].
        """
        return self.forward_tapped(tokens, slots, starts)[0]

    @torch.inference_mode()
    def forward_tapped(
        self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int], forest: Forest | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """As `forward`, with the tapped hidden states [B, T, taps x hidden size] beside the logits.

        With a forest the tokens are trees and not chains: they are written in their order, and have the positions and
        see the tokens that the forest says; `SlotCache.keep` puts those that are kept in their places. The forest may
        have the `width` of the pass already.
        """
        if self._static is not None:
            try:
                return self._static.forward(tokens, slots, starts, forest)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # modelling code that cannot be captured still runs step by step
                self._static, self._not_captured = None, first_line(error)
        out = self._run(self.model, tokens, slots, starts, forest)
        return out.logits[:, : tokens.shape[1]], self._tapped(out, tokens.shape[1])

    @torch.inference_mode()
    def prefill(self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor | None:
        """Feed tokens [B, T] for their keys and values, and their tapped hidden states."""
        return self._tapped(self._run(self.model.base_model, tokens, slots, starts), tokens.shape[1])

    def forward_as_it_comes(self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor:
        """As `forward`, in the shape that is fastest, whatever that does to the last bits."""
        exact, self._static = self._static, self._usual
        try:
            return self.forward(tokens, slots, starts)
        finally:
            self._static = exact

    @property
    def hindrances(self) -> list[str]:
        """What has kept passes on a GPU from being as fast as they could be, a clause each."""
        not_compiled = self._usual.not_compiled if self._usual else None
        return [
            *([f"its passes cannot be captured as CUDA graphs ({self._not_captured})"] if self._not_captured else []),
            *([f"its layers cannot be compiled ({not_compiled})"] if not_compiled else []),
        ]

    def width(self, length: int) -> int:
        """Tokens per row that a round's pass over `length` of them is padded to, and costs as much as."""
        if isinstance(self._static, ExactSteps):
            return length
        return padded_width(length) if self._static is None else captured_width(length)

    def _run(
        self, model: Any, tokens: Tensor, slots: Sequence[int], starts: Sequence[int], forest: Forest | None = None
    ) -> Any:
        width = padded_width(tokens.shape[1]) if forest is None else forest.depths.shape[1]
        room = self.cache.columns - max(starts)  # the end of a prompt may be near that of the cache
        tokens = functional.pad(tokens, (0, min(width, room) - tokens.shape[1]))
        first = to_device(starts, self.device)
        columns = first[:, None] + torch.arange(tokens.shape[1], device=self.device)
        return self._call(model, tokens, columns, Pass(self.cache, slots, starts, columns), forest)

    def _step(
        self, tokens: Tensor, columns: Tensor, view: StaticView, forest: Forest | None = None
    ) -> tuple[Tensor, Tensor | None]:
        out = self._call(self.model, tokens, columns, view, forest)
        return out.logits, self._tapped(out, tokens.shape[1])

    def _tapped(self, out: Any, length: int) -> Tensor | None:
        return torch.cat([out.hidden_states[i][:, :length] for i in self.taps], dim=-1) if self.taps else None

    def _call(
        self, model: Any, tokens: Tensor, columns: Tensor, view: Pass | StaticView, forest: Forest | None = None
    ) -> Any:
        """Run the model on tokens [B, T] that are written to columns [B, T]: their positions, if they are chains."""
        positions = columns if forest is None else columns[:, :1] + forest.depths
        return model(
            input_ids=tokens,
            position_ids=positions.clamp(max=self._limit),
            attention_mask=self._mask(columns, view.length, forest),
            past_key_values=view,
            use_cache=True,
            output_hidden_states=bool(self.taps),
        )

    def _mask(self, written: Tensor, length: int, forest: Forest | None = None) -> Tensor | dict[str, Tensor] | None:
        """Which columns each query may look at, in the shape that the model's attention takes."""
        columns = torch.arange(length, device=self.device)

        def seen(window: int | None) -> Tensor:
            if forest is not None:
                return visible(forest.inside, forest.depths, forest.depths, written[:, 0], columns, window)
            before = columns <= written[:, None, :, None]
            return before if window is None else before & (columns > written[:, None, :, None] - window)

        window = getattr(self.config, "sliding_window", None)
        types = set(getattr(self.config, "layer_types", None) or ())
        if window is None or (types and "sliding_attention" not in types):
            return self._shaped(seen(None))
        if not types:
            return self._shaped(seen(window))
        return {"full_attention": self._shaped(seen(None)), "sliding_attention": self._shaped(seen(window))}

    def _shaped(self, mask: Tensor) -> Tensor:
        if self._fold > 0:
            return mask.repeat(1, 1, self._fold, 1) if self._fold > 1 else mask
        blocked = torch.zeros(mask.shape, dtype=self.model.dtype, device=self.device)
        return blocked.masked_fill_(~mask, torch.finfo(self.model.dtype).min)

    def _use_slot_attention(self) -> int:
        """Query heads per key head, with our attention switched on; 0 where the model needs its own (eager)."""
        heads = getattr(self.config, "num_attention_heads", 0)
        groups = getattr(self.config, "num_key_value_heads", None) or heads
        special = any(getattr(self.config, name, None) for name in ("attn_logit_softcapping", "attention_chunk_size"))
        if special or not getattr(self.model, "_supports_sdpa", False):
            self.model.set_attn_implementation("eager")
            return 0
        self.model.set_attn_implementation(attention.NAME)
        return int(heads // groups)

    def _allocate(self, slots: int, columns: int) -> SlotCache:
        shapes = self._shapes()
        per_token = sum(kh * kd + vh * vd for kh, kd, vh, vd in shapes) * self.model.dtype.itemsize
        require_memory(self.device, slots * columns * per_token, f"a cache of {slots} x {columns} tokens")
        try:
            return SlotCache(shapes, slots, columns, self.device, self.model.dtype)
        except (RuntimeError, MemoryError):
            need = slots * columns * per_token / 1e9
            raise EngineError(
                f"a cache of {slots} x {columns} tokens needs {need:.1f} GB and does not fit: lower --context"
            ) from None

    @torch.inference_mode()
    def _shapes(self) -> list[tuple[int, int, int, int]]:
        """What each layer stores per token, learnt by feeding one: the modelling code alone knows."""
        probe = _Probe()
        token = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        try:
            self.model.base_model(
                input_ids=token,
                position_ids=torch.zeros_like(token),
                attention_mask=self._mask(torch.zeros_like(token), 1),
                past_key_values=probe,
                use_cache=True,
            )
        except Exception as error:  # any modelling code may be behind this call
            kind = getattr(self.config, "model_type", type(self.model).__name__)
            raise EngineError(
                f"models of type {kind} cannot be run with a slot cache ({error}): choose another"
            ) from error
        return [probe.shapes[i] for i in sorted(probe.shapes)]


class _Probe:
    """Stands in for a cache and notes the shapes it is given."""

    is_compileable = False

    def __init__(self) -> None:
        self.shapes: dict[int, tuple[int, int, int, int]] = {}

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        self.shapes[layer_idx] = (key.shape[1], key.shape[3], value.shape[1], value.shape[3])
        return key, value

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        return 0
