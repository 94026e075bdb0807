"""Forward passes of fixed shape on a GPU: a CUDA graph per bucket of rows, tokens and columns.

Rows beyond the batch are padding: they feed token 0 and write to the last column of the cache, which never holds a
token.

Their layers are compiled, one for all of its kind. A layer of modelling code is some sixty operations, most of them
small: norms, RoPE, cache, activation. Compilation fuses those between the matrix products into a few kernels. Compiling
one layer instead of the whole network keeps the start short: it is done once for all layers and shapes.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from specchat.engine.cache.kv_cache import KVCache, StaticView
from specchat.engine.config import keep_compiled_code
from specchat.engine.decoding.tree import chain
from specchat.engine.decoding.tree_mask import TreeMask, TreePart
from specchat.engine.device.device import CAPTURED, captured_width, to_device
from specchat.engine.device.graphs import FIRST, LATER, Graphs, Inputs, Signature
from specchat.engine.errors import first_line

_RECOMPILATIONS = 64
"""Recompilation limit per layer class and process: kinds of layers, one or several rows, one or several tokens."""
_marked: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def compile_layers(network: Any) -> bool:
    """Make the decoder layers run compiled when their cache is a `StaticView` with `compiled` set.

    Args:
        network: a causal language model of transformers.

    Returns:
        Whether this is supported: the layers are known, and each has its own part of the cache.
    """
    if network in _marked:
        return True
    keep_compiled_code()
    # Else code for as many rows as the cache has slots is thought to need as many. So the same code serves every cache.
    torch.fx.experimental._config.use_duck_shape = False
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _RECOMPILATIONS)
    kinds = set(getattr(network, "_no_split_modules", None) or ())
    layers = [module for module in network.base_model.modules() if type(module).__name__ in kinds]
    if not layers or any(_indices(layer) != {i} for i, layer in enumerate(layers)):
        return False
    for i, layer in enumerate(layers):
        layer.forward = _either(layer, i)
    _marked.add(network)
    return True


def _indices(layer: nn.Module) -> set[int]:
    """Cache layer indices that the modules of a layer carry."""
    indices = (getattr(module, "layer_idx", None) for module in layer.modules())
    return {index for index in indices if isinstance(index, int)}


@lru_cache
def _options() -> dict[str, Any]:
    """Options of torch's compiler, the same for all layers.

    It rounds where the modelling code rounds, so that results differ only by the order of sums, puts kernels side by
    side into one launch, lets a kernel start before the one before it has ended (`gpu.starts_early`), and makes gate
    and residuals part of products of one token.
    """
    from specchat.engine.backends.fused_products import FuseProducts  # it takes a second to import

    return {
        "emulate_precision_casts": True,
        "combo_kernels": True,
        "triton.enable_pdl": True,
        "pre_grad_custom_pass": FuseProducts(),
    }


def _either(layer: nn.Module, index: int) -> Callable[..., Any]:
    """Forward pass of a layer, compiled if its cache view asks for it."""
    plain = type(layer).forward
    compiled = torch.compile(plain, fullgraph=True, dynamic=True, options=_options())
    held = weakref.ref(layer)  # a cycle would keep the weights until Python looks for cycles

    def forward(*args: Any, **kwargs: Any) -> Any:
        layer = held()
        name, view = next((named for named in kwargs.items() if isinstance(named[1], StaticView)), ("", None))
        assert layer is not None
        if view is None or not view.compiled:
            return plain(layer, *args, **kwargs)
        # Its own view, so that compiled code does not depend on its index; layers that read another's keys have none.
        own = view.layer(index) if index < len(view.cache.keys) else view
        with _no_hooks_within(layer):
            return compiled(layer, *args, **{**kwargs, name: own})

    return forward


@contextmanager
def _no_hooks_within(layer: nn.Module) -> Iterator[None]:
    """Remove forward hooks inside a layer: transformers' recorders of attention weights cannot be compiled."""
    hooked = [(part, part._forward_hooks) for part in layer.modules() if part is not layer and part._forward_hooks]
    try:
        for part, _ in hooked:
            part._forward_hooks = OrderedDict()
        yield
    finally:
        for part, hooks in hooked:
            part._forward_hooks = hooks


_FEWEST_COLUMNS = 256
_FAR = 1.25
"""A larger bucket of columns is dropped if it is less than this factor larger than the one before."""
_GAP = 0.1
"""Largest relative difference of the logits of compiled layers, which add in another order."""
_MOST = 120
"""Buckets that are planned, the likeliest; others are captured once they are needed."""

Scores = tuple[Tensor, Tensor | None]
"""Logits [B, T, V], and the tapped hidden states [B, T, taps x hidden size]."""

Step = Callable[[Tensor, Tensor, StaticView, TreeMask | TreePart | None], Scores]
"""Scores of tokens [B, T] at columns [B, T] through a view of the cache; without a tree mask the tokens are chains."""


class CapturedPasses:
    """Forward passes of one model over its KV cache, padded to buckets.

    The scores of all buckets are in one place: they are valid until the next pass.

    Args:
        cache: the KV cache; its last column is written by padding rows.
        step: runs the model.
        graphs: captures the passes.
        compiled: whether layers run compiled (`engine.backends.captured_passes`).
        trees: whether passes may be over trees; then all are, chains being trees without branches.
    """

    def __init__(
        self, cache: KVCache, step: Step, graphs: Graphs, *, compiled: bool = False, trees: bool = True
    ) -> None:
        self.cache, self.step, self.graphs = cache, step, graphs
        self.not_compiled: str | None = None
        """Why layers do not run compiled although requested; None if they do."""
        self._trees = trees
        self._compiled = compiled
        self._compared: set[Hashable] = set()
        """Kinds of passes whose compiled layers were compared with the modelling code."""
        self.column_counts = _sizes(cache.columns - 1)
        """Columns that passes may attend over."""

    def forward(
        self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int], tree_mask: TreeMask | None = None
    ) -> Scores:
        """Scores of tokens [B, T] in these slots from these positions on."""
        length, device = tokens.shape[1], self.graphs.device
        width, rows = captured_width(length), self.graphs.count(len(slots))
        # A pass with a row for every slot reads the cache in place, so each sequence gets the row of its slot.
        every = range(self.cache.slots)
        seats, row_slots = (slots, every) if rows == self.cache.slots else (every[: len(slots)], slots)
        end = max(starts) + width
        columns = next((size for size in self.column_counts if size >= end), self.column_counts[-1])
        index, start = [-1] * rows, [0] * rows
        for row, (seat, first) in enumerate(zip(seats, starts, strict=True)):
            index[seat], start[seat] = row, first
        tensors = {"tokens": tokens}
        if self._branches(width):
            mask = tree_mask or TreeMask.of((chain(width - 1),) * len(slots), width, device)
            tensors |= {"depths": mask.depths, "inside": mask.inside}
        numbers = {"index": index, "start": start, "slots": row_slots}
        results = self.graphs.call(*self.bucket(rows, width, columns), numbers, tensors)
        in_order = list(seats) == list(range(len(slots)))
        mine: slice | Tensor = slice(len(slots)) if in_order else to_device(list(seats), device)
        logits, *tapped = (part[mine, :length] for part in results)
        return logits, tapped[0] if tapped else None

    def _compiled_or_plain(self, kind: Hashable, run: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """Results of `run`, whose layers may be compiled; without compilation from then on if that fails.

        The first results of a kind of passes are compared with the results of the modelling code. They are mostly of
        padding, whose attention is to an empty cache: a fault of attention may be missed.
        """
        if not self._compiled or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            return run()
        try:
            found = run()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a compiler fails in many ways: none installed, or code that it does not know
            found, self.not_compiled = None, first_line(error)
        if found is not None and kind in self._compared:
            return found
        self._compiled = False
        expected = run()
        if found is None:
            return expected
        ours, theirs = (part[0][:, -1].float() for part in (found, expected))
        if not (ours - theirs).norm() <= _GAP * theirs.norm():
            self.not_compiled = "the results of compiled layers are wrong"
            return expected
        self._compiled = True
        self._compared.add(kind)
        return found

    def plan(self) -> None:
        """Plan to capture the largest bucket, into whose memory the others fit, then the likeliest: few rows, few
        columns.

        The widest comes first, since what is compiled for it serves the narrower ones.
        """
        widths = CAPTURED[::-1]
        likeliest = list(product(self.graphs.counts, self.column_counts, widths))
        largest = (self.graphs.counts[-1], self.column_counts[-1], widths[0])
        for rows, columns, width in [largest, *likeliest][:_MOST]:
            first = (rows, columns, width) == largest or (rows, columns) == (1, self.column_counts[0])
            self.graphs.plan(FIRST if first else LATER + rows, *self.bucket(rows, width, columns))

    def _branches(self, width: int) -> bool:
        return self._trees and width > 1

    def bucket(
        self, rows: int, width: int, columns: int
    ) -> tuple[tuple[int, int, int], Callable[[Inputs], Sequence[Tensor]], Callable[[], Signature]]:
        """Key, function and signature of passes over `rows` rows of `width` tokens that attend to `columns` columns."""

        def run(inputs: Inputs) -> Sequence[Tensor]:
            index = inputs["index"]
            used, row = (index >= 0)[:, None], index.clamp(min=0)
            positions = inputs["start"][:, None] + torch.arange(width, device=index.device)
            positions = torch.where(used, positions, self.cache.columns - 1)
            tokens = torch.where(used, inputs["tokens"][row], 0)
            mask = None  # padding may attend to anything
            if self._branches(width):
                depths, inside = inputs["depths"][row], inputs["inside"][row]
                mask = TreeMask(depths, inside, depths, depths, (), ())
            view = StaticView(self.cache, inputs["slots"], columns, positions, compiled=self._compiled)
            logits, tapped = self.step(tokens, positions, view, mask)
            return [logits, *([] if tapped is None else [tapped])]

        def signature() -> Signature:
            tensors: dict[str, tuple[tuple[int, ...], torch.dtype]] = {"tokens": ((rows, width), torch.long)}
            initial: dict[str, object] = {"index": [-1] * rows, "slots": range(rows)}
            if self._branches(width):
                blank = TreeMask.of([chain(width - 1)] * rows, width, self.graphs.device)
                tensors |= {"depths": ((rows, width), torch.long), "inside": ((rows, width, width), torch.bool)}
                initial |= {"depths": blank.depths, "inside": blank.inside}
            most = self.graphs.counts[-1] * CAPTURED[-1] // (rows * width) + 1
            shared = {"result 0": most, "result 1": most}
            return Signature(dict.fromkeys(("index", "start", "slots"), (rows,)), {}, tensors, shared, initial)

        # The compiler makes other code for one row, and for one token.
        kind = rows == 1, width == 1
        return (rows, width, columns), lambda inputs: self._compiled_or_plain(kind, lambda: run(inputs)), signature


def _sizes(columns: int) -> list[int]:
    """Numbers of columns, each twice the one before, up to all but one.

    Never all: a view of a whole tensor would make the compiler compile again.
    """
    sizes = [min(_FEWEST_COLUMNS, columns)]
    while sizes[-1] < columns:
        sizes.append(min(2 * sizes[-1], columns))
    if len(sizes) > 1 and sizes[-1] < _FAR * sizes[-2]:
        del sizes[-2]
    return sizes
