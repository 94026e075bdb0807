"""torch modules on packed weights, for the modelling code of transformers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from specchat.engine.kernels.decoder_weights import Floats
from specchat.engine.kernels.library import KernelError, library
from specchat.engine.kernels.packed_matrix import PackedMatrix, unpack


class _PackedModule(nn.Module):
    def __init__(self, matrix: PackedMatrix) -> None:
        super().__init__()
        self.matrix = matrix

    @property
    def weight(self) -> Tensor:
        """float32 copy of the weight [rows, columns], computed at each access."""
        return torch.from_numpy(unpack(self.matrix))

    @property
    def bytes(self) -> int:
        """Memory of the packed weight."""
        return self.matrix.data.nbytes


class QuantizedLinear(_PackedModule):
    """`nn.Linear` for inference on the CPU, batch-invariant.

    Args:
        matrix: the packed weight.
        bias: [rows], or None.
    """

    def __init__(self, matrix: PackedMatrix, bias: Tensor | None = None) -> None:
        super().__init__(matrix)
        self.in_features, self.out_features = matrix.columns, matrix.rows
        if bias is not None and bias.shape != (matrix.rows,):
            raise KernelError(f"the bias has the shape {list(bias.shape)} and not [{matrix.rows}]")
        self.bias = None if bias is None else bias.detach().to(torch.float32).contiguous()
        self._linear, self._c = library().c.sk_linear, matrix.c

    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:
        """x Wᵀ + b [..., out] of x [..., in], in the dtype of x."""
        flat = x.to(torch.float32).reshape(-1, self.in_features).contiguous()
        out = torch.empty(len(flat), self.out_features)
        bias = None if self.bias is None else self.bias.data_ptr()
        self._linear(self._c, bias, flat.data_ptr(), len(flat), out.data_ptr(), torch.get_num_threads())
        return out.to(x.dtype).view(*x.shape[:-1], self.out_features)


class QuantizedEmbedding(_PackedModule):
    """`nn.Embedding` for inference on the CPU, in float32.

    Args:
        matrix: the packed table [V, d].
    """

    def __init__(self, matrix: PackedMatrix) -> None:
        super().__init__(matrix)
        self.num_embeddings, self.embedding_dim = matrix.rows, matrix.columns

    @torch.inference_mode()
    def forward(self, tokens: Tensor) -> Tensor:
        """Rows [..., d] of tokens [...]."""
        return torch.from_numpy(self.matrix.rows_of(tokens.flatten().numpy())).view(*tokens.shape, self.embedding_dim)


def array_of(values: Tensor | nn.Module) -> Floats:
    """The numbers of a weight, which the type checker may take for a module."""
    assert isinstance(values, Tensor)
    return np.ascontiguousarray(values.detach().float().numpy())
