"""Texts whose cache is kept in files between runs: loading one takes a fraction of the time of reading it.

A file has the content of every block of a text, and the text, after a checksum. Files are in a folder that is named by
what they depend on, so that the files of other models are not read.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from specchat.engine.cache.block_pool import BlockPool
from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.files import FILE_MODE, existing, make_folder, replacing

MOST_BYTES = 1_000_000_000
"""Largest size of all files together; the oldest ones are deleted."""
SUFFIX = ".cache"
_TOKENS = "tokens"
_CHECKED = 4
"""Bytes of a checksum."""


class KeptTexts:
    """The files of an engine.

    Args:
        pool: with the caches of all models, managed.
        folder: of the files of all engines.
        models: what blocks are computed with.
    """

    def __init__(self, pool: BlockPool, folder: Path, models: object) -> None:
        layout = [(str(each.dtype), tuple(each.shape[1:])) for each in _contents(pool)]
        self._pool, self._all = pool, folder
        self._folder = folder / sha256(repr((models, layout)).encode()).hexdigest()[:16]

    def save(self, slot: int, texts: Mapping[str, Sequence[int]]) -> None:
        """Write the cache of texts, by name, the most valuable ones first, as many as `MOST_BYTES` allows.

        Args:
            slot: an empty one.
            texts: their tokens.

        Raises:
            OSError: a file cannot be written.
        """
        size, left, chosen = self._pool.bytes // self._pool.blocks, MOST_BYTES, list[str]()
        for name, tokens in texts.items():
            left -= -(-len(tokens) // BLOCK) * size
            if left < 0:
                break
            chosen.append(name)
        make_folder(self._folder)
        for name in reversed(chosen):  # so that the most valuable file is the newest
            content = self._content(slot, texts[name])
            with replacing(self._folder / f"{name}{SUFFIX}") as part:
                part.touch(FILE_MODE)
                with part.open("wb") as output:
                    output.write(zlib.crc32(content).to_bytes(_CHECKED))
                    output.write(content)
        left = MOST_BYTES
        for file, size in _newest_first(self._all.glob(f"*/*{SUFFIX}")):
            left -= size
            if left < 0:
                file.unlink(missing_ok=True)

    def _content(self, slot: int, tokens: Sequence[int]) -> bytes:
        length = self._pool.admit(slot, tokens)
        blocks = torch.tensor(self._pool.held(slot), dtype=torch.long)
        stored = (each[blocks.to(each.device)].cpu().contiguous() for each in _contents(self._pool))
        content = {str(i): each for i, each in enumerate(stored)}
        self._pool.clear(slot)
        return save(content | {_TOKENS: torch.tensor(tokens[:length], dtype=torch.int32)})

    def load(self, slot: int) -> bool:
        """Read the newest files, as long as there are free blocks; whether none of them was damaged, which are deleted.

        Args:
            slot: an empty one.
        """
        sound = True
        for file, _ in _newest_first(self._folder.glob(f"*{SUFFIX}")):
            try:
                data = file.read_bytes()
                if zlib.crc32(memoryview(data)[_CHECKED:]).to_bytes(_CHECKED) != data[:_CHECKED]:
                    raise ValueError(file)
                content = load(data[_CHECKED:])
                tokens = content.pop(_TOKENS).tolist()
            except FileNotFoundError:  # another program has deleted it
                continue
            except (OSError, ValueError, KeyError, SafetensorError):
                sound = False
                file.unlink(missing_ok=True)
                continue
            if len(tokens) > self._pool.columns:  # kept with a larger context
                continue
            if -(-len(tokens) // BLOCK) > self._pool.free:
                break
            self._fill(slot, tokens, content)
        return sound

    def _fill(self, slot: int, tokens: Sequence[int], content: Mapping[str, Tensor]) -> None:
        first = self._pool.admit(slot, tokens) // BLOCK  # blocks before it are shared with a text that was loaded
        self._pool.reserve(slot, len(tokens))
        blocks = torch.tensor(self._pool.held(slot)[first:], dtype=torch.long)
        for i, each in enumerate(_contents(self._pool)):
            each[blocks.to(each.device)] = content[str(i)][first:].to(each.device)
        self._pool.commit(slot, tokens, final=True)
        self._pool.clear(slot)


def _contents(pool: BlockPool) -> Iterator[Tensor]:
    """All that is stored of blocks [blocks, …]."""
    for store in pool.stores:
        yield torch.from_numpy(store.valid)
        yield from store.memory


def _newest_first(files: Iterator[Path]) -> list[tuple[Path, int]]:
    """Files and their sizes in bytes."""
    found = sorted(existing(files), key=lambda each: each[1].st_mtime, reverse=True)
    return [(file, status.st_size) for file, status in found]
