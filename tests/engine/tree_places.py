"""Nodes of a tree as they are fed to a runner part by part."""

from torch import Tensor

from specchat.engine.decoding.tree import Tree
from specchat.engine.decoding.tree_part import TreePlace


def places(tree: Tree, tokens: Tensor, slot: int, first: int) -> list[TreePlace]:
    """All nodes but the root, each in a column of its own.

    Args:
        tree: of the nodes.
        tokens: [nodes], the root's first.
        slot: of the cache.
        first: column of the root.
    """
    return [TreePlace(slot, first, int(tokens[node]), node, tree.path(node)[:-1]) for node in range(1, len(tree) + 1)]
