"""A pass of torch's compiler that makes the gate of an MLP, and residuals, part of products of one token.

A layer of a Llama has two kernels less: the activation, and the residual after the MLP. The pass sees the functions
that a layer calls, before the compiler takes them apart.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node
from torch.nn import functional

from specchat.engine.backends import token_product  # noqa: F401 (it registers the operator)

_MULTIPLY = torch.ops.specchat.multiply.default


class FuseProducts(CustomGraphPass):
    """A pass of torch's compiler that makes the gate of an MLP, and a residual, part of the product of one token."""

    def __call__(self, graph: Graph) -> None:
        """Rewrite a graph of torch's functions."""
        for node in list(graph.nodes):
            if node.target is operator.mul:
                _fuse_gate(graph, node)
            elif node.target is operator.add:
                _fuse_residual(graph, node)

    def uuid(self) -> Any:
        """Key of this version of the pass in the cache of compiled code."""
        return get_hash_for_files((__file__,))


def _fuse_gate(graph: Graph, node: Any) -> None:
    """Replace silu(gate) · up, where gate and up are the halves of a product that nothing else reads."""
    gated, up = node.args
    if not (_read_once(gated) and gated.target is functional.silu and _read_once(up)):
        return
    gate: Any = next(iter(gated.args), None)
    if not (_read_once(gate) and gate.target is up.target is operator.getitem and gate.args[0] is up.args[0]):
        return
    halves = gate.args[0]
    if halves.target != "split" or halves.kwargs != {"dim": -1} or (gate.args[1], up.args[1]) != (0, 1):
        return
    product, sizes = halves.args
    if _is_product(product) and isinstance(sizes, list) and len(sizes) == 2 and sizes[0] == sizes[1]:
        _replace(graph, [node, gated, up, gate, halves, product], None)


def _fuse_residual(graph: Graph, node: Any) -> None:
    """Replace a sum with a product that nothing else reads."""
    for product, other in (node.args, node.args[::-1]):
        if _is_product(product) and isinstance(other, Node):
            like, added = product.meta["example_value"], other.meta.get("example_value")
            if isinstance(added, Tensor) and added.shape == like.shape and added.dtype == like.dtype:
                return _replace(graph, [node, product], other)
    return None


def _read_once(node: Any) -> bool:
    return isinstance(node, Node) and len(node.users) == 1


def _is_product(node: Any) -> bool:
    """Whether a value is a product of one token, without gate or addend, that is read once."""
    return _read_once(node) and node.target is _MULTIPLY and len(node.args) == 3


def _replace(graph: Graph, nodes: list[Any], addend: Any) -> None:
    """Replace nodes, which read each other only, from the result to the product; more than two nodes are a gate."""
    node, product = nodes[0], nodes[-1]
    with graph.inserting_before(node):
        fused = graph.call_function(_MULTIPLY, (*product.args, addend, len(nodes) > 2))
    fused.meta = {**node.meta}
    node.replace_all_uses_with(fused)
    # Nothing else may go: a method that works in place has a result that nothing reads.
    for each in nodes:
        graph.erase_node(each)
