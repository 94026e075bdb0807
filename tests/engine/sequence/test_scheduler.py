"""Slots: who gets which, and whose cache is used again."""

from __future__ import annotations

from specchat.engine.outbox import Outbox
from specchat.engine.request import Request
from specchat.engine.sequence.scheduler import Placement, Scheduler, common_prefix
from specchat.engine.sequence.sequence import SequenceState


def make_row(slot: int, tokens: list[int], cached: int) -> SequenceState:
    request = Request(f"r{slot}", prompt_ids=tuple(tokens))
    return SequenceState(request, Outbox(), slot, tokens, len(tokens), cached, 0, None, "none")  # type: ignore[arg-type]


def hold(scheduler: Scheduler[None], slot: int, tokens: list[int]) -> None:
    """Run a request in a slot and let it leave `tokens` cached there."""
    row = make_row(slot, tokens, len(tokens))
    scheduler.admit(row)
    scheduler.retire(row)


def test_a_follow_up_goes_on_in_its_own_slot() -> None:
    scheduler: Scheduler[None] = Scheduler(3)
    hold(scheduler, 0, [1, 2, 3])
    hold(scheduler, 1, [1, 2, 9, 8])
    assert scheduler.place([1, 2, 9, 8, 7, 6]) == Placement(1, 1, 4)


def test_the_last_token_of_a_prompt_is_never_taken_from_the_cache() -> None:
    scheduler: Scheduler[None] = Scheduler(1)
    hold(scheduler, 0, [1, 2, 3])
    assert scheduler.place([1, 2, 3]) == Placement(0, 0, 2)


def test_another_conversation_copies_a_shared_beginning_and_leaves_its_owner_alone() -> None:
    scheduler: Scheduler[None] = Scheduler(2)
    hold(scheduler, 0, [1, 2, 3, 4, 5, 6])
    assert scheduler.place([1, 2, 9, 9]) == Placement(1, 0, 2)


def test_a_running_row_shares_what_it_has_cached_so_far() -> None:
    scheduler: Scheduler[None] = Scheduler(2)
    scheduler.admit(make_row(0, [1, 2, 3, 4], cached=3))
    assert scheduler.place([1, 2, 3, 4, 5]) == Placement(1, 0, 3)


def test_the_slot_unused_for_longest_is_given_up_first() -> None:
    scheduler: Scheduler[None] = Scheduler(2)
    hold(scheduler, 1, [5] * 9)
    hold(scheduler, 0, [6] * 9)
    assert scheduler.place([7, 7]).slot == 1


def test_a_slot_that_is_not_to_be_trusted_is_forgotten() -> None:
    scheduler: Scheduler[None] = Scheduler(1)
    row = make_row(0, [1, 2, 3], 3)
    scheduler.admit(row)
    assert not scheduler.has_room
    scheduler.retire(row, keep=False)
    assert scheduler.place([1, 2, 3, 4]).length == 0


def test_common_prefix() -> None:
    assert common_prefix([], [1]) == 0
    assert common_prefix([1, 2], [1, 2, 3]) == 2
    assert common_prefix([1, 2, 4], [1, 2, 3]) == 2


def test_rows_wait_for_a_shared_prefix_if_that_saves_a_pass() -> None:
    begun, alike, other = [*range(20), 50], [*range(20), 51], [*range(30, 50), 52]
    assert prefilled_together(begun, alike, other) == [0, 2], "the second reuses twenty tokens"
    assert prefilled_together([1, *begun[2:]], [1, *alike[10:]], other) == [0, 1, 2], "one shared token saves no pass"


def test_a_cached_prefix_is_reused_by_all_rows_of_a_pass() -> None:
    shared = list(range(60))
    rows = [make_row(slot, [*shared, 90 + slot, slot], cached=0) for slot in range(9)]
    rows[0].cached = len(rows[0].tokens) - 1

    def reuse(row: SequenceState) -> None:
        row.cached = len(shared)

    assert Scheduler[None](9).prefill_batch(rows[1:], 64, 100, reuse, ragged=False) == rows[1:]


def test_a_prompt_that_is_the_same_as_one_that_has_been_read_waits_for_nothing() -> None:
    rows = [make_row(slot, list(range(70)), cached=0) for slot in range(70)]

    def reuse(row: SequenceState) -> None:
        row.cached = len(row.tokens) - 1

    assert Scheduler[None](70).prefill_batch(rows, 64, 100, reuse, ragged=True) == rows


def test_a_ragged_pass_counts_tokens_and_a_padded_one_its_padding() -> None:
    lengths = (40, 3, 3, 3, 3, 3, 3)
    prompts = [[100 * n + k for k in range(length)] for n, length in enumerate(lengths)]
    assert prefilled_together(*prompts, ragged=False) == [0]
    assert prefilled_together(*prompts, ragged=True) == [*range(6)], "240 places at most hold what the pass gives"


def prefilled_together(*prompts: list[int], ragged: bool = True) -> list[int]:
    """Which of these prompts one pass of 64 tokens reads."""
    rows = [make_row(slot, prompt, 0) for slot, prompt in enumerate(prompts)]
    scheduler: Scheduler[None] = Scheduler(len(rows))
    together = scheduler.prefill_batch(rows, 64, 100, lambda row: None, ragged=ragged)  # noqa: ARG005
    return sorted(row.slot for row in together)


def test_a_reserved_slot_is_not_assigned_and_has_no_reusable_tokens() -> None:
    scheduler: Scheduler[None] = Scheduler(2)
    hold(scheduler, 0, [1, 2, 3])
    hold(scheduler, 1, [4, 5, 6])
    assert scheduler.reserve() == 0  # used least recently
    assert scheduler.place([1, 2, 3, 7]) == Placement(1, 0, 0)
    scheduler.admit(make_row(1, [1, 2, 3, 7], 0))
    assert not scheduler.has_room
    assert scheduler.reserve() is None
    scheduler.release(0)
    assert scheduler.place([8, 9]).slot == 0
