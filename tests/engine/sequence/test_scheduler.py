"""Slots and cache blocks: who gets which, which tokens are read again; a prompt asked several times is read once."""

from specchat.engine import Prefilled, Request, Sampling
from specchat.engine.cache.block_pool import BlockPool
from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.sequence.sequence import Scheduler
from tests.engine.cache.token_store import TokenStore
from tests.engine.rows import row_of
from tests.engine.tiny import run_together, tiny_engine


def scheduler_of(slots: int, blocks: int = 40, columns: int = 256) -> Scheduler:
    """A scheduler with a cache of `blocks` blocks."""
    pool = BlockPool(slots, columns)
    store = TokenStore(pool)
    pool.manage(blocks * BLOCK)
    return Scheduler(store)


def test_rows_wait_for_a_shared_prefix_if_that_saves_a_pass() -> None:
    begun, alike, other = [*range(20), 50], [*range(20), 51], [*range(30, 50), 52]
    assert prefilled_together(begun, alike, other) == [0, 2], "the second reuses twenty tokens"
    assert prefilled_together([1, *begun[2:]], [1, *alike[10:]], other) == [0, 1, 2], "one shared token saves no pass"


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
