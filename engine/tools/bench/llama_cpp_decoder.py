"""A GGUF file loaded by llama.cpp, with a context for several sequences and threads of its own."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, c_int8, c_int32, c_void_p
from pathlib import Path
from typing import Any

from specchat.engine.errors import EngineError
from specchat.engine.tools.bench.llama_cpp_library import Batch, LlamaCppLibrary, Parameters


class LlamaCppDecoder:
    """Passes of llama.cpp over tokens, and its own samplers on their logits.

    Everything but the arguments is as llama.cpp comes. Its threads are those of a pool, as in llama.cpp's own tools.

    Args:
        library: the functions.
        file: GGUF file.
        context: tokens per sequence.
        slots: sequences.
        threads: of a pass, the caller included.
        on_cpu: leave GPUs aside.

    Raises:
        EngineError: llama.cpp cannot read the file, or does not take these values.
    """

    def __init__(
        self, library: LlamaCppLibrary, file: Path, context: int, slots: int, threads: int, *, on_cpu: bool
    ) -> None:
        self.library = library
        self.threads = threads
        self.slots = slots
        self._c = library
        self._most = context * slots
        nothing = (c_void_p * 1)()  # an empty list of devices, which ends with NULL
        model_parameters = library.llama_model_default_params()
        if on_cpu:
            ctypes.c_uint64.from_buffer(model_parameters).value = ctypes.addressof(nothing)
        library.take_errors()
        self._model = library.llama_model_load_from_file(str(file).encode(), model_parameters)
        if not self._model:
            raise EngineError(f"it cannot read {file}: {library.take_errors() or 'it says no more'}")
        self._context = library.llama_init_from_model(
            self._model, library.context_parameters(self._most, slots, threads)
        )
        if not self._context:
            why = library.take_errors() or "it says no more"
            library.llama_model_free(self._model)
            raise EngineError(f"it has no room for {slots} texts of {context} tokens: {why}")
        how = Parameters()
        library.ggml_threadpool_params_init(ctypes.byref(how), threads)
        self._pool = library.ggml_threadpool_new(ctypes.byref(how))
        library.llama_attach_threadpool(self._context, self._pool, None)
        self.close = weakref.finalize(self, _free, library, self._model, self._context, self._pool)
        self._memory = library.llama_get_memory(self._context)
        self.vocab_size = int(library.llama_vocab_n_tokens(library.llama_model_get_vocab(self._model)))
        self._allocate()
        self._check()

    def decode(self, tokens: Sequence[int], slots: Sequence[int], positions: Sequence[int], judged: int) -> None:
        """One pass; of its last `judged` tokens the logits are kept for `sample`.

        Raises:
            EngineError: llama.cpp reports a failure.
        """
        count = len(tokens)
        self._tokens[:count] = tokens
        self._positions[:count] = positions
        for place, slot in enumerate(slots):
            self._owners[place] = self._slot_lists[slot]
        self._wanted[:count] = [0] * (count - judged) + [1] * judged
        self._batch.n_tokens = count
        failed = self._c.llama_decode(self._context, self._batch)
        if failed:
            raise EngineError(f"llama.cpp failed: {self._c.take_errors() or f'llama_decode returned {failed}'}")

    def read(self, tokens: Sequence[int], slot: int) -> None:
        """Read the beginning of a text into a slot, and wait for the end of it; no logits."""
        if tokens:
            self.decode(tokens, [slot] * len(tokens), range(len(tokens)), 0)
            self._c.llama_synchronize(self._context)

    def sample(self, sampler: int, place: int) -> int:
        """A token from the logits of the token at a place of the last pass."""
        return int(self._c.llama_sampler_sample(sampler, self._context, place))

    def forget(self, slot: int, position: int = 0) -> None:
        """Drop the text of a slot from a position on."""
        self._c.llama_memory_seq_rm(self._memory, slot, position, -1)

    @contextmanager
    def sampler(self, temperature: float, seed: int) -> Iterator[int]:
        """A sampler: greedy at 0, else all tokens at the temperature."""
        chain = self._c.llama_sampler_chain_init(self._c.llama_sampler_chain_default_params())
        if temperature:
            self._c.llama_sampler_chain_add(chain, self._c.llama_sampler_init_temp(temperature))
            self._c.llama_sampler_chain_add(chain, self._c.llama_sampler_init_dist(seed))
        else:
            self._c.llama_sampler_chain_add(chain, self._c.llama_sampler_init_greedy())
        try:
            yield chain
        finally:
            self._c.llama_sampler_free(chain)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Puts the threads to sleep at the end: they would go on polling for work for a while, beside ours."""
        try:
            yield
        finally:
            self._c.ggml_threadpool_pause(self._pool)

    def _allocate(self) -> None:
        """Arrays of a batch of up to all tokens of the context."""
        most = self._most
        self._tokens: Any = (c_int32 * most)()
        self._positions: Any = (c_int32 * most)()
        self._wanted: Any = (c_int8 * most)()
        self._ids = [c_int32(slot) for slot in range(self.slots)]
        self._slot_lists = [ctypes.pointer(each) for each in self._ids]
        self._owners = (POINTER(c_int32) * most)()
        self._ones = (c_int32 * most)(*[1] * most)
        self._batch = Batch(
            0, self._tokens, None, self._positions, self._ones, ctypes.cast(self._owners, POINTER(POINTER(c_int32))),
            self._wanted,
        )  # fmt: skip

    def _check(self) -> None:
        """Read back what was asked for, and the layout of a batch.

        Raises:
            EngineError: llama.cpp has understood something else.
        """
        c, context = self._c, self._context
        made = c.llama_batch_get_one(self._tokens, 7)
        known = (
            made.n_tokens == 7
            and ctypes.addressof(made.token.contents) == ctypes.addressof(self._tokens)
            and not any((made.embd, made.pos, made.n_seq_id, made.seq_id, made.logits))
            and c.llama_n_ctx(context) >= self._most
            and c.llama_n_batch(context) >= self._most
            and c.llama_n_seq_max(context) == self.slots
            and c.llama_n_threads(context) == c.llama_n_threads_batch(context) == self.threads
        )
        if not known:
            self.close()
            raise EngineError(f"{self._c.file} is of a release whose structures have a layout that is not known")


def _free(library: LlamaCppLibrary, model: int, context: int, pool: int) -> None:
    library.llama_free(context)
    library.ggml_threadpool_free(pool)
    library.llama_model_free(model)
