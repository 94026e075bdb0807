"""A decoder of the common kind (Llama, Mistral, SmolLM, Qwen2, Qwen3, Gemma 2 and 3, Phi-3), a pass in one call."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from specchat.engine.kernels.decoder_weights import DecoderWeights
from specchat.engine.kernels.library import KernelError, library
from specchat.engine.kernels.token_layout import Batch, TokenLayout


class Decoder:
    """A model on packed weights. A token's bits depend on what it sees alone.

    Raises:
        KernelError: there are no kernels here.
    """

    def __init__(self, weights: DecoderWeights) -> None:
        self.weights, self.shape = weights, weights.shape
        self._library = library()
        self._c = self._library.new_decoder(weights.c)
        self._logits = torch.empty(0)
        self._whole: dict[int, Tensor] = {}
        """Views of `_logits` by the tokens of a pass."""
        weakref.finalize(self, self._library.free_decoder, self._c)

    def attach(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Use this cache: float16 [slots, key_heads, columns, head_size] per layer, contiguous, kept alive here.

        Raises:
            KernelError: a tensor is of another kind or shape.
        """
        slots, _, columns, _ = keys[0].shape
        wanted = (slots, self.shape.key_heads, columns, self.shape.head_size)
        if len(keys) != len(self.weights.layers) or len(values) != len(self.weights.layers):
            raise KernelError(f"a cache of {len(keys)} layers does not fit a model of {len(self.weights.layers)}")
        for tensor in (*keys, *values):
            if tensor.dtype is not torch.float16 or tensor.shape != wanted or not tensor.is_contiguous():
                raise KernelError(f"the cache must be contiguous float16 tensors of the shape {list(wanted)}")
        self._cache = (*keys, *values)
        addresses = [[tensor.data_ptr() for tensor in part] for part in (keys, values)]
        self._library.attach(self._c, slots, columns, *addresses)

    def run(
        self,
        tokens: Sequence[int],
        chains: TokenLayout,
        judged: Sequence[int],
        threads: int,
        taps: Sequence[int] = (),
        entered: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """One pass.

        Args:
            tokens: [n].
            chains: where they stand.
            judged: [m], the tokens whose logits are wanted.
            threads: how many compute, this one included.
            taps: depths of hidden states to hand out: 0 the embeddings, the number of layers what the final norm gives.
            entered: [n, hidden], what the first layer reads; None for the embeddings of the tokens.

        Returns:
            Logits [m, vocabulary], and the tapped states [n, taps x hidden] or None; float32.

        Raises:
            KernelError: something does not fit, which is said before anything is computed.
        """
        logits = torch.empty(len(judged), self.shape.vocabulary)
        tapped = torch.empty(len(tokens), len(taps) * self.shape.hidden) if taps else None
        batch = Batch(tokens, chains, judged, threads)
        read = self._enter(batch, entered, len(tokens))
        batch.c.logits = logits.data_ptr()
        batch.c.tap_count, batch.c.taps = len(taps), _depths(tuple(taps)).buffer_info()[0]
        batch.c.tapped = None if tapped is None else tapped.data_ptr()
        self._library.run(self._c, batch.c)
        del read
        return logits, tapped

    def run_all(
        self,
        tokens: Sequence[int],
        chains: TokenLayout,
        threads: int,
        taps: Sequence[int] = (),
        *,
        likeliest: int,
        entered: Tensor | None = None,
    ) -> tuple[Tensor, list[list[int]], Tensor | None]:
        """One pass with the logits [n, vocabulary] of every token, which hold until the next one; and tapped states.

        With `likeliest`, so many of the likeliest tokens [n, likeliest] behind every token as well, in order, -1 where
        a logit is not a number. Other arguments as for `run`, which says what else there is.
        """
        count = len(tokens)
        logits = self._room(count)
        tapped = torch.empty(count, len(taps) * self.shape.hidden) if taps else None
        best = array("i", bytes(4 * count * likeliest))
        batch = Batch(tokens, chains, range(count), threads)
        read = self._enter(batch, entered, count)
        batch.c.logits, batch.c.best_count = logits.data_ptr(), max(1, likeliest)
        batch.c.best = best.buffer_info()[0] if likeliest else None
        batch.c.tap_count, batch.c.taps = len(taps), _depths(tuple(taps)).buffer_info()[0]
        batch.c.tapped = None if tapped is None else tapped.data_ptr()
        self._library.run(self._c, batch.c)
        del read
        found = best.tolist()
        return logits, [found[at : at + likeliest] for at in range(0, len(found), likeliest or 1)], tapped

    def _room(self, count: int) -> Tensor:
        """[count, vocabulary], where the logits of a pass go."""
        size = self.shape.vocabulary
        if self._logits.numel() < count * size:
            self._logits, self._whole = torch.empty(count * size), {}
        if count not in self._whole:
            self._whole[count] = self._logits[: count * size].view(count, size)
        return self._whole[count]

    def _enter(self, batch: Batch, entered: Tensor | None, count: int) -> Tensor | None:
        """Let the first layer read these states; what is given back has to live as long as the pass."""
        if entered is None:
            return None
        if entered.shape != (count, self.shape.hidden):
            raise KernelError(f"a pass over {count} tokens cannot read states of the shape {list(entered.shape)}")
        read = entered.float().contiguous()
        batch.c.entered = read.data_ptr()
        return read


@lru_cache
def _depths(taps: tuple[int, ...]) -> array[int]:
    """As the library reads them."""
    return array("i", taps)
