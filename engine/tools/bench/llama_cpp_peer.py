"""Peer llama.cpp: the same GGUF file, token ids, samplers' settings and number of threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from specchat.engine.research.ngram import NGramPredictor
from specchat.engine.tools.bench.llama_cpp_decoder import LlamaCppDecoder
from specchat.engine.tools.bench.pace import Pace
from specchat.engine.tools.bench.prompts import Prompt

Encode = Callable[[Prompt], list[int]]
"""Encodes a prompt with the engine's tokenizer: both sides read the same token ids."""
_SEED = 1


class LlamaCppPeer:
    """llama.cpp, plain or with prompt lookup.

    llama.h has no prompt lookup: as in llama.cpp's example of that name, the caller proposes, here with the engine's
    n-gram tables, and llama.cpp reads and samples all proposed positions in one pass.

    Args:
        decoder: the model in llama.cpp.
        encode: prompt to token ids.
        ends: token ids that end a reply.
        gamma: draft length of prompt lookup; 0 for plain decoding.
    """

    def __init__(self, decoder: LlamaCppDecoder, encode: Encode, ends: Collection[int], gamma: int = 0) -> None:
        self.gamma = gamma
        self.name = "llama.cpp prompt lookup" if gamma else "llama.cpp"
        self._decoder = decoder
        self._encode = encode
        self._ends = frozenset(ends)

    def refusal(self, batch: int) -> str | None:
        """Refuses batches of prompt lookup, and those larger than the context was made for."""
        if self.gamma and batch > 1:
            return "it drafts for a batch of 1 only"
        return f"it has {self._decoder.slots} slots" if batch > self._decoder.slots else None

    def run(self, prompts: Sequence[Prompt], batch: int, temperature: float, max_tokens: int) -> Pace:
        """Decode in batches; each is timed from its first token to the end of its first reply."""
        waves = [[self._encode(prompt) for prompt in prompts[i : i + batch]] for i in range(0, len(prompts), batch)]
        decode = self._lookup if self.gamma else self._plain
        with self._decoder.awake(), self._decoder.sampler(temperature, _SEED) as sampler:
            paces = [decode(wave, sampler, max_tokens) for wave in waves]
        return Pace(sum(pace.tokens for pace in paces), sum(pace.seconds for pace in paces))

    def read(self, ids: Sequence[int]) -> float | None:
        """Seconds to read a prompt without its last token, which the first pass of a reply reads."""
        self._decoder.forget(0)
        with self._decoder.awake():
            started = time.perf_counter()
            self._decoder.read(ids[:-1], 0)
            return time.perf_counter() - started

    def _plain(self, prompts: Sequence[Sequence[int]], sampler: int, max_tokens: int) -> Pace:
        rows = range(len(prompts))
        self._prefill(prompts)
        tokens, lengths = [ids[-1] for ids in prompts], [len(ids) - 1 for ids in prompts]
        started, count = 0.0, 0
        for step in range(max_tokens):
            self._decoder.decode(tokens, rows, [length + step for length in lengths], len(tokens))
            tokens = [self._decoder.sample(sampler, row) for row in rows]
            if step == 0:
                started = time.perf_counter()
            else:
                count += len(tokens)
            if not self._ends.isdisjoint(tokens):
                break
        return Pace(count, time.perf_counter() - started)

    def _lookup(self, prompts: Sequence[Sequence[int]], sampler: int, max_tokens: int) -> Pace:
        (ids,) = prompts
        self._prefill(prompts)
        tables = NGramPredictor(self._ends)
        tables.extend(ids)
        last, length, emitted = ids[-1], len(ids) - 1, 0
        started, first = 0.0, 0
        while emitted < max_tokens:
            draft = tables.predict(min(self.gamma, max_tokens - emitted - 1))[0] if emitted else []
            chain = [last, *draft]
            self._decoder.decode(chain, [0] * len(chain), range(length, length + len(chain)), len(chain))
            kept = self._accepted(draft, sampler)
            self._decoder.forget(0, length + len(kept))
            tables.extend(kept)
            last, length, emitted = kept[-1], length + len(kept), emitted + len(kept)
            if not first:
                started, first = time.perf_counter(), emitted
            if last in self._ends:
                break
        return Pace(emitted - first, time.perf_counter() - started)

    def _accepted(self, draft: Sequence[int], sampler: int) -> list[int]:
        """The tokens sampled along a draft, up to the first that differs from it or ends the reply."""
        kept: list[int] = []
        for place in range(len(draft) + 1):
            kept.append(self._decoder.sample(sampler, place))
            if kept[-1] in self._ends or place == len(draft) or kept[-1] != draft[place]:
                break
        return kept

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        for slot, ids in enumerate(prompts):
            self._decoder.forget(slot)
            self._decoder.read(ids[:-1], slot)
