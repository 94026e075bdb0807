"""A text in another slot, as prompts get it from the blocks of the cache."""

from specchat.engine.cache.kv_cache import KVCache
from specchat.engine.cache.paged_cache import PagedCache


def copy_text(cache: KVCache | PagedCache, source: int, target: int, length: int) -> None:
    """Let slot `target` know what `source` knows up to `length`."""
    for each in (*cache.keys, *cache.values):
        if isinstance(cache, KVCache):
            each[target, :, :length] = each[source, :, :length]
        else:
            each[cache.pool.tables[target]] = each[cache.pool.tables[source]]
    if cache.states:
        cache.states.give(target, cache.states.take(source, length))
