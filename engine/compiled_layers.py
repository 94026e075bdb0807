"""Regional compilation: one decoder layer, compiled once, runs for all layers that are like it.

A layer of modelling code is some sixty operations, most of them small: norms, rotation, cache, activation. Compiled,
what lies between the matrix products becomes few kernels. One layer instead of the whole network keeps the start short:
it is compiled once for all layers and shapes.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from engine.static_steps import StaticView

_RECOMPILATIONS = 64
"""Of one class of layers, for all networks of a process: kinds of layers, times one or several rows and tokens."""
_marked: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def compile_layers(network: Any) -> bool:
    """Let the decoder layers run compiled over a `StaticView` that asks for it; nothing else changes.

    Args:
        network: a causal language model of transformers.

    Returns:
        Whether it can be done: the layers are known, and each has its own part of the cache.
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
    """Which parts of a cache a layer says are its own."""
    indices = (getattr(module, "layer_idx", None) for module in layer.modules())
    return {index for index in indices if isinstance(index, int)}


def _either(layer: nn.Module, index: int) -> Callable[..., Any]:
    """A layer's forward pass, compiled or not as its cache asks."""
    plain = type(layer).forward
    # Rounding where the modelling code rounds keeps a compiled pass as close to it as another order of sums allows.
    compiled = torch.compile(plain, fullgraph=True, dynamic=True, options={"emulate_precision_casts": True})

    held = weakref.ref(layer)  # a cycle would keep the weights until Python looks for cycles

    def forward(*args: Any, **kwargs: Any) -> Any:
        layer, view = held(), kwargs.get("past_key_values")
        assert layer is not None
        if not (isinstance(view, StaticView) and view.compiled):
            return plain(layer, *args, **kwargs)
        # A layer is handed its own part: what is compiled must not depend on which one it is.
        with _no_hooks_within(layer):
            return compiled(layer, *args, **{**kwargs, "past_key_values": view.layer(index)})

    return forward


@contextmanager
def _no_hooks_within(layer: nn.Module) -> Iterator[None]:
    """transformers' recorders of attention weights, which nobody asks for, read what cannot be compiled."""
    hooked = [(part, part._forward_hooks) for part in layer.modules() if part is not layer and part._forward_hooks]
    try:
        for part, _ in hooked:
            part._forward_hooks = OrderedDict()
        yield
    finally:
        for part, hooks in hooked:
            part._forward_hooks = hooks
