"""Slots and cache blocks: who gets which, which tokens are read again; a prompt asked several times is read once."""

from specchat.engine import Prefilled, Request, Sampling
from specchat.engine.cache.block_pool import BlockPool
from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.sequence.sequence import Scheduler, SequenceState
from tests.engine.cache.token_store import TokenStore
from tests.engine.rows import row_of
from tests.engine.tiny import run_together, tiny_engine


def scheduler_of(slots: int, blocks: int = 40, columns: int = 256) -> Scheduler:
    """A scheduler with a cache of `blocks` blocks."""
    pool = BlockPool(slots, columns)
    store = TokenStore(pool)
    pool.manage(blocks * BLOCK)
    return Scheduler(store)


def placed(scheduler: Scheduler, prompt: list[int]) -> tuple[int, int]:
    place = scheduler.place(prompt)
    assert place is not None
    return place


def test_blocks_that_a_round_did_not_need_are_free_after_it() -> None:
    scheduler = scheduler_of(2, blocks=6)
    slot, _ = placed(scheduler, list(range(60)))
    row = row_of(range(60), slot, cached=59)
    scheduler.admit(row)
    assert len(scheduler.pool.held(slot)) == 3
    scheduler.trim()
    assert len(scheduler.pool.held(slot)) == 2
    assert scheduler.place(list(range(100, 160))) is not None
    scheduler.trim()
    assert scheduler.extend(row)
    assert len(scheduler.pool.held(slot)) == 3


class RowStore(TokenStore):
    """A cache whose passes write rows, which are copied to blocks."""

    def __init__(self, pool: BlockPool) -> None:
        super().__init__(pool)
        self.rows: dict[int, list[int]] = {}

    def save(self, slot: int, start: int, end: int) -> None:
        for first, block, columns in self.parts(slot, start, end):
            self.content[block, columns.start : columns.stop] = self.rows[slot][first : first + len(columns)]


def test_what_the_target_reads_of_a_text_that_others_know_is_stored() -> None:
    pool = BlockPool(1, 256)
    store = RowStore(pool)
    pool.manage(40 * BLOCK)
    scheduler = Scheduler(store)
    text = list(range(60))

    def begin() -> SequenceState:
        slot, length = placed(scheduler, [*text, 0])
        row = row_of([*text, 0], slot, cached=length)
        scheduler.admit(row)
        scheduler.attach(row)
        store.rows[slot] = row.tokens
        return row

    first = begin()
    first.cached = 60
    scheduler.retire(first)
    second = begin()
    store.valid[pool.held(0)[1]], store.content[pool.held(0)[1], 10:] = 10, -1  # the target has lost these columns
    second.cached = 60
    scheduler.attach(second)
    assert second.cached == 42
    second.cached = 60
    scheduler.commit(second)
    second.tokens.append(7)
    second.cached = 61
    scheduler.retire(second)
    third = begin()
    assert store.text(0, third.cached) == text[: third.cached]
    assert third.cached == 60


def test_a_text_that_is_not_to_be_trusted_is_forgotten() -> None:
    scheduler = scheduler_of(1)
    slot, length = placed(scheduler, [1, 2, 3])
    row = row_of([1, 2, 3], slot, cached=length)
    scheduler.admit(row)
    assert scheduler.free_slot is None
    scheduler.retire(row, keep=False)
    assert placed(scheduler, [1, 2, 3, 4]) == (0, 0)


def test_rows_wait_for_a_shared_prefix_if_that_saves_a_pass() -> None:
    begun, alike, other = [*range(20), 50], [*range(20), 51], [*range(30, 50), 52]
    assert prefilled_together(begun, alike, other) == [0, 2], "the second reuses twenty tokens"
    assert prefilled_together([1, *begun[2:]], [1, *alike[10:]], other) == [0, 1, 2], "one shared token saves no pass"


def test_a_prompt_that_is_the_same_as_one_that_has_been_read_waits_for_nothing() -> None:
    rows = [row_of(range(70), slot) for slot in range(70)]

    def reuse(row: SequenceState) -> None:
        row.cached = len(row.tokens) - 1

    assert scheduler_of(70).prefill_batch(rows, 64, 100, reuse, ragged=True) == rows


def test_a_ragged_pass_counts_tokens_and_a_padded_one_its_padding() -> None:
    lengths = (40, 3, 3, 3, 3, 3, 3)
    prompts = [[100 * n + k for k in range(length)] for n, length in enumerate(lengths)]
    assert prefilled_together(*prompts, ragged=False) == [0]
    assert prefilled_together(*prompts, ragged=True) == [*range(6)], "240 places at most hold what the pass gives"


def prefilled_together(*prompts: list[int], ragged: bool = True) -> list[int]:
    """Indices of the prompts that one pass of 64 tokens reads."""
    rows = [row_of(prompt, slot) for slot, prompt in enumerate(prompts)]
    scheduler = scheduler_of(len(rows))
    together = scheduler.prefill_batch(rows, 64, 100, lambda row: None, ragged=ragged)  # noqa: ARG005
    return sorted(row.slot for row in together)


PROMPT = tuple(range(97, 117)) * 5


def test_a_prompt_that_is_asked_several_times_at_once_is_read_once() -> None:
    requests = [Request(f"r{n}", prompt_ids=PROMPT, max_tokens=12, sampling=Sampling(1.0, seed=n)) for n in range(4)]
    with tiny_engine(chunk=16) as engine:
        together = run_together(engine, requests)
    chunks = [sum(isinstance(event, Prefilled) for event in events) for events in together]
    assert sorted(chunks) == [1, 1, 1, 7]
