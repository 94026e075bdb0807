"""torch modules on packed weights, for the modelling code of transformers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from specchat.engine.kernels.library import KernelError, library
from specchat.engine.kernels.packed_matrix import PackedMatrix


class QuantizedLinear(nn.Module):
    """`nn.Linear` for inference on the CPU; a row's bits do not depend on the rows beside it.

    Args:
        matrix: the packed weight.
        bias: [rows], or None.
        threads: how many compute, the caller included; torch's number if not given.
    """

    def __init__(self, matrix: PackedMatrix, bias: Tensor | None = None, threads: int | None = None) -> None:
        super().__init__()
        self.matrix = matrix
        self.in_features, self.out_features = matrix.columns, matrix.rows
        if bias is not None and bias.shape != (matrix.rows,):
            raise KernelError(f"the bias has the shape {list(bias.shape)} and not [{matrix.rows}]")
        self.bias = None if bias is None else bias.detach().to(torch.float32).contiguous()
        self._threads = threads
        self._library, self._c = library(), matrix.c

    @property
    def weight(self) -> Tensor:
        """A plain float32 copy [out, in], made anew each time."""
        return torch.from_numpy(self.matrix.rows_of(np.arange(self.out_features)))

    @property
    def bytes(self) -> int:
        """Memory of the packed weight."""
        return self.matrix.data.nbytes

    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:
        """x Wᵀ + b [..., out] of x [..., in], in the type of x."""
        plain = x.to(torch.float32).reshape(-1, self.in_features).contiguous()
        out = torch.empty(len(plain), self.out_features)
        bias = None if self.bias is None else self.bias.data_ptr()
        self._library.linear(
            self._c, bias, plain.data_ptr(), len(plain), out.data_ptr(), self._threads or torch.get_num_threads()
        )
        return out.to(x.dtype).view(*x.shape[:-1], self.out_features)


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
