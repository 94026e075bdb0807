"""Passes of fixed shape against usual ones on the same device, and against float32 on the CPU: rows, widths, head
ratios, columns, trees."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu_day.bench import ON_GPU
from benchmarks.gpu_day.section import Row
from specchat.engine.backends.captured_passes import CapturedPasses
from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.decoding.tree import Tree, chain, tree_of
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.device.device import pick_device
from specchat.engine.device.graphs import GraphPool, Graphs
from specchat.engine.models.packed.gpu_layers import GpuQuantizedLinear, check_kernel, choose_products
from specchat.engine.models.packed.quantize import quantize

RATIOS = (4, 8, 7, 3)
"""The most common first: the section may be stopped."""
KINDS = ("bfloat16", "q4", "q8") if ON_GPU else ("float32",)
PLACES = ((300, (1, 4, 32)), (4000, (1,))) if ON_GPU else ((300, (1, 2)),)
"""Columns of the cache that are filled, and numbers of rows."""
WIDTHS = (17, 9, 5, 1) if ON_GPU else (5, 1)
"""The widest first, as the engine captures them: it decides what is compiled for the others."""
_PROCESSES = 12 if ON_GPU else 1
_VOCABULARY, _KEY_HEADS = 1024, 2
_HEAD = 128 if ON_GPU else 16
_MOST_GAP = {"float32": 1e-4, "bfloat16": 0.02, "q8": 0.02, "q4": 0.02}
"""Largest mean difference of log-probabilities from usual passes, which round as much: it was 0.005 on an H100. From
float32 it is up to 0.08."""


def rows() -> Iterator[Row]:
    """A row per head ratio and format."""
    if not ON_GPU:
        yield {"what": "no GPU: passes of fixed shape run eagerly on the CPU, in float32"}
    with ProcessPoolExecutor(_PROCESSES, get_context("spawn")) as pool:  # most of the time is the compiler's
        found = {pool.submit(_compare, *case): case for case in product(KINDS, RATIOS)}
        for future in as_completed(found):
            kind, ratio = found[future]
            yield {"what": f"{ratio} query heads per key head, {kind}", **future.result()}


@torch.inference_mode()
def _compare(kind: str, ratio: int) -> Row:
    device = pick_device("auto")
    torch.set_num_threads(max((os.cpu_count() or 1) // _PROCESSES, 1))
    torch._dynamo.reset()  # all networks together exceed the limit of compilations in a process
    if kind.startswith("q"):
        check_kernel(device)
    exact_network, fast_network = _networks(ratio, kind, device)
    largest = mean = from_exact = 0.0
    cases = differing = 0
    most, context = max(max(counts) for _, counts in PLACES), PLACES[-1][0] + 64
    exact = TransformersBackend(exact_network, most, context, 17)
    fast, usual = (TransformersBackend(fast_network, most, context, 17) for _ in range(2))
    usual.captured, usual.in_place = None, False
    if not ON_GPU:
        fast.captured = CapturedPasses(
            fast.cache, fast._step, Graphs(device, fast.cache.slots, GraphPool(device, capture=False))
        )
    for columns, row_counts in PLACES:
        for backend in (exact, fast, usual):
            for slot in range(max(row_counts)):
                backend.prefill(_drawn(1, columns - slot, seed=slot).to(backend.device), [slot], [0])
        for count, width, branches in product(row_counts, WIDTHS, (False, True)):
            if branches and width == 1:
                continue
            tree = tree_of(3).first(width - 1) if branches else chain(width - 1)
            exactly, expected = (
                _pass(each, tree, count, columns, branches=branches).cpu().float().log_softmax(-1)
                for each in (exact, usual)
            )
            found = _pass(fast, tree, count, columns, branches=branches)
            first = found.cpu()
            found.fill_(float("nan"))  # a graph must not read what it wrote before
            differing += not torch.equal(_pass(fast, tree, count, columns, branches=branches).cpu(), first)
            found = first.float().log_softmax(-1)
            gap, cases = (found - expected).abs(), cases + 1
            largest, mean = max(largest, gap.max().item()), max(mean, gap.mean().item())
            from_exact = max(from_exact, (found - exactly).abs().mean().item())
    return {
        "cases": cases,
        "largest mean gap": mean,
        "largest gap": largest,
        "largest mean gap from float32": from_exact,
        "replays that differ": differing,
        "warnings": "; ".join(fast.performance_warnings) or "none",
        "wrong": not mean < _MOST_GAP[kind] or differing > 0,
    }


def _pass(backend: TransformersBackend, tree: Tree, count: int, columns: int, *, branches: bool) -> Tensor:
    """Logits of a pass over a tree in the first `count` slots."""
    fed = _drawn(count, len(tree) + 1, seed=99).to(backend.device)
    slots = list(range(count))
    starts = [columns - slot for slot in slots]
    if not branches:
        return backend.forward(fed, slots, starts)
    mask = TreeMask.of([tree] * count, backend.width(len(tree) + 1), backend.device)
    return backend._forward(fed, slots, starts, mask)[0][:, : len(tree) + 1]


def _networks(ratio: int, kind: str, device: torch.device) -> tuple[Any, Any]:
    """A float32 network on the CPU, and the same weights in this format on the device."""
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = ratio * _KEY_HEADS
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=heads * _HEAD,
        intermediate_size=4 * _HEAD,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=_KEY_HEADS,
        max_position_embeddings=8192,
    )
    made: list[Any] = []
    for fast in (False, True):
        torch.manual_seed(0)
        network: Any = LlamaForCausalLM(config).requires_grad_(False)
        if kind.startswith("q"):
            _quantise(network.model.layers, kind, device if fast else None)
        dtype = torch.bfloat16 if fast and kind != "float32" else torch.float32
        made.append(network.to(device=device, dtype=dtype) if fast else network.to(dtype))
    return made[0], made[1]


def _quantise(layers: nn.Module, method: str, device: torch.device | None) -> None:
    """Replace the linear layers' weights by codes on the device; without one, by the values of the codes."""
    for name, part in list(layers.named_modules()):
        if isinstance(part, nn.Linear):
            arrays = quantize(part.weight, method)
            if device is None:
                part.weight.copy_(torch.from_numpy(arrays.values()))
            else:
                layers.set_submodule(name, GpuQuantizedLinear(arrays, None, device))
    choose_products(part for part in layers.modules() if isinstance(part, GpuQuantizedLinear))


def _drawn(*shape: int, seed: int) -> Tensor:
    return torch.randint(0, _VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))
