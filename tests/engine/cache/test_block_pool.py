"""Cache blocks: what a slot reads is its own text, whatever was shared, evicted and copied; no block is ever lost."""

import random
from collections import Counter

import pytest

from specchat.engine.cache.block_pool import BlockPool
from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.errors import EngineError
from tests.engine.cache.token_store import TokenStore

COLUMNS, SLOTS = 6 * BLOCK, 3


def managed(blocks: int) -> tuple[BlockPool, TokenStore, TokenStore]:
    """A pool with the caches of a target, and of a drafter that does not read every text."""
    pool = BlockPool(SLOTS, COLUMNS)
    target, drafter = TokenStore(pool), TokenStore(pool)
    pool.manage(blocks * BLOCK * 2)
    return pool, target, drafter


def references(pool: BlockPool) -> Counter[int]:
    """Who uses each block, counted anew."""
    users = Counter(block for slot in range(SLOTS) for block in pool.held(slot))
    users.update(node.block for node in pool._tree.nodes)
    return users


def read(pool: BlockPool, target: TokenStore, slot: int, text: list[int]) -> int:
    """Read a text in an empty slot; returns how much of it was known."""
    known = pool.admit(slot, text)
    assert pool.reserve(slot, len(text))
    assert target.attach(slot, known) == known
    assert target.text(slot, known) == text[:known]
    target.read(slot, text, known)
    target.mark(slot, known, len(text))
    return known


def test_a_text_is_known_to_the_exact_token_and_shared_until_it_differs() -> None:
    pool, target, _ = managed(20)
    first = list(range(100))
    assert read(pool, target, 0, first) == 0
    pool.commit(0, first, final=True)
    for length in (1, 31, 32, 33, 64, 99):
        assert read(pool, target, 1, [*first[:length], *range(500, 530)]) == length
        assert list(pool.held(0)[: length // BLOCK]) == list(pool.held(1)[: length // BLOCK])
        pool.clear(1)
    assert target.text(0, 100) == first
    longer = [*first, *range(200, 240)]
    assert read(pool, target, 2, longer) == 100
    pool.commit(2, longer, final=True)
    pool.clear(0)
    pool.clear(2)
    assert pool.known([*longer, 7]) == 140


def test_the_texts_that_were_used_last_stay_and_running_ones_are_never_evicted() -> None:
    pool, target, _ = managed(10)
    texts = [[100 * i + j for j in range(2 * BLOCK)] for i in range(4)]
    for text in texts:
        read(pool, target, 0, text)
        pool.commit(0, text, final=True)
        pool.clear(0)
    read(pool, target, 1, texts[0])  # used again, and held
    assert pool.reserve(2, 3 * BLOCK)
    assert [pool.known(text) > 0 for text in texts][:2] == [True, False]
    assert target.text(1, 2 * BLOCK) == texts[0]
    assert pool.has_room(4 * BLOCK)
    assert not pool.has_room(5 * BLOCK)
    assert pool.reserve(2, COLUMNS)
    assert not pool.reserve(0, 2 * BLOCK)


def test_a_cache_that_has_not_read_a_text_knows_only_what_it_has_read() -> None:
    pool, target, drafter = managed(20)
    text = list(range(90))
    read(pool, target, 0, text)
    drafter.read(0, text[:50], 0)
    drafter.mark(0, 0, 50)
    pool.commit(0, text, final=True)
    pool.clear(0)
    assert pool.admit(0, text) == 90
    assert drafter.attach(0, 90) == 50
    assert drafter.text(0, 50) == text[:50]


def test_a_pool_holds_at_least_one_text() -> None:
    pool, _, _ = managed(1)
    assert pool.blocks == COLUMNS // BLOCK + 1

    class Full(TokenStore):
        def allocate(self, blocks: int) -> None:
            if hasattr(self, "content"):
                raise MemoryError
            super().allocate(blocks)

    small = BlockPool(1, COLUMNS)
    Full(small)
    with pytest.raises(EngineError, match="lower --context"):
        small.manage(10_000)


@pytest.mark.parametrize("seed", range(4))
def test_after_random_requests_every_block_is_free_or_in_use_and_no_text_was_mixed_up(seed: int) -> None:
    draw = random.Random(seed)
    pool, target, _ = managed(draw.choice([8, 14, 30]))
    running: dict[int, list[int]] = {}
    known: list[list[int]] = [[1]]
    for _ in range(2500):
        slot = draw.randrange(SLOTS)
        if slot not in running:
            base = draw.choice(known)
            text = base[: draw.randrange(len(base) + 1)] + [draw.randrange(3) for _ in range(draw.randrange(1, 40))]
            text = text[: COLUMNS - 3]
            if not pool.has_room(len(text)):
                continue
            read(pool, target, slot, text)
            pool.commit(slot, text, final=draw.random() < 0.3)
            running[slot] = text
        elif draw.random() < 0.5:
            text, start = running[slot], len(running[slot])
            grown = [*text, *(draw.randrange(3) for _ in range(draw.randrange(1, 20)))][: COLUMNS - 3]
            if pool.reserve(slot, len(grown) + 5):
                target.read(slot, [*grown, 9, 9], start)  # drafted tokens, taken back
                target.mark(slot, start, len(grown))
                running[slot] = grown
        else:
            text = running.pop(slot)
            assert target.text(slot, len(text)) == text
            if draw.random() < 0.8:
                pool.commit(slot, text, final=True)
                known = [*known[-20:], text]
            pool.clear(slot)
        users = references(pool)
        assert len(users) + len(pool._free) == pool.blocks - 1
        assert all(pool._users[block] == count for block, count in users.items())
    for slot in running:
        pool.clear(slot)
    assert len(pool._tree.nodes) + len(pool._free) == pool.blocks - 1
