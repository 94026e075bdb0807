"""Regional compilation: one decoder layer is compiled and runs for all layers of its kind.

A layer of modelling code is some sixty operations, most of them small: norms, RoPE, cache, activation. Compilation
fuses those between the matrix products into a few kernels. Compiling one layer instead of the whole network keeps the
start short: it is done once for all layers and shapes.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from specchat.engine.cache.static_view import StaticView

_RECOMPILATIONS = 64
"""Recompilation limit per layer class and process: kinds of layers, times one or several rows and tokens."""
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
    kinds = set(getattr(network, "_no_split_modules", None) or ())
    layers = [module for module in network.base_model.modules() if type(module).__name__ in kinds]
    if not layers or any(_indices(layer) != {i} for i, layer in enumerate(layers)):
        return False
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _RECOMPILATIONS)
    for i, layer in enumerate(layers):
        layer.forward = _either(layer, i)
    _marked.add(network)
    return True


def _indices(layer: nn.Module) -> set[int]:
    """Cache layer indices that the modules of a layer carry."""
    indices = (getattr(module, "layer_idx", None) for module in layer.modules())
    return {index for index in indices if isinstance(index, int)}


def _either(layer: nn.Module, index: int) -> Callable[..., Any]:
    """Forward pass of a layer, compiled if its cache view asks for it."""
    plain = type(layer).forward
    # Rounds where the modelling code rounds, so results differ only by the order of sums.
    compiled = torch.compile(plain, fullgraph=True, dynamic=True, options={"emulate_precision_casts": True})

    held = weakref.ref(layer)  # a cycle would keep the weights until Python looks for cycles

    def forward(*args: Any, **kwargs: Any) -> Any:
        layer, view = held(), kwargs.get("past_key_values")
        assert layer is not None
        if not (isinstance(view, StaticView) and view.compiled):
            return plain(layer, *args, **kwargs)
        # The layer gets its own view, so that the compiled code does not depend on the layer's index.
        with _no_hooks_within(layer):
            return compiled(layer, *args, **{**kwargs, "past_key_values": view.layer(index)})

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
