"""An embedding on packed weights, for modelling code that is not ours."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from specchat.engine.kernels.packed_matrix import PackedMatrix


class QuantizedEmbedding(nn.Module):
    """`nn.Embedding` for inference on the CPU, in float32.

    Args:
        matrix: the packed table [vocabulary, d].
    """

    def __init__(self, matrix: PackedMatrix) -> None:
        super().__init__()
        self.matrix = matrix
        self.num_embeddings, self.embedding_dim = matrix.rows, matrix.columns

    @property
    def weight(self) -> Tensor:
        """A plain float32 copy [vocabulary, d], made anew each time."""
        return torch.from_numpy(self.matrix.rows_of(np.arange(self.num_embeddings)))

    @property
    def bytes(self) -> int:
        """Memory of the packed table."""
        return self.matrix.data.nbytes

    @torch.inference_mode()
    def forward(self, tokens: Tensor) -> Tensor:
        """Rows [..., d] of tokens [...]."""
        return torch.from_numpy(self.matrix.rows_of(tokens.flatten().numpy())).view(*tokens.shape, self.embedding_dim)
