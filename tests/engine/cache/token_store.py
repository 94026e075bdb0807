"""A cache that holds tokens instead of keys and values, for tests of its blocks."""

import numpy as np
import torch

from specchat.engine.cache.block_pool import BlockPool, BlockStore
from specchat.engine.cache.prefix_tree import BLOCK


class TokenStore(BlockStore):
    """A cache whose columns hold the tokens that were read."""

    column_bytes = 1

    def __init__(self, pool: BlockPool) -> None:
        super().__init__(pool)
        self.allocate(pool.blocks)

    def allocate(self, blocks: int) -> None:
        self.content = np.full((blocks, BLOCK), -1)
        self.memory = [torch.from_numpy(self.content)]

    def read(self, slot: int, tokens: list[int], start: int) -> None:
        for column in range(start, len(tokens)):
            self.content[self.pool.tables[slot, column // BLOCK], column % BLOCK] = tokens[column]

    def text(self, slot: int, length: int) -> list[int]:
        return [int(self.content[self.pool.tables[slot, i // BLOCK], i % BLOCK]) for i in range(length)]
