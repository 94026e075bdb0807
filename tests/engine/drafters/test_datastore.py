"""The suffix array and the datastore against a search of all texts, and what the suffix drafter makes of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.engine.decoding.draft import RowOrder
from specchat.engine.drafters import datastore as module
from specchat.engine.drafters.datastore import DEPTH, Datastore, SuffixArray
from specchat.engine.drafters.suffix import OTHER_CHATS, SuffixDrafter
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.settings import Sampling
from tests.engine.rows import row_of
from tests.engine.tiny import ask

tokens = st.lists(st.integers(0, 2), max_size=50)
texts = st.lists(tokens, max_size=5)
STORY = list(range(100, 160))


def matches(store: Sequence[Sequence[int]], text: Sequence[int]) -> tuple[int, set[tuple[int, int]]]:
    """Length of the longest suffix that is in any sequence, and its places: (sequence, end)."""
    for length in range(min(len(text), DEPTH), 0, -1):
        suffix = list(text[len(text) - length :])
        found = {
            (number, end)
            for number, each in enumerate(store)
            for end in range(length, len(each) + 1)
            if list(each[end - length : end]) == suffix
        }
        if found:
            return length, found
    return 0, set()


@given(texts, tokens)
def test_the_match_is_the_longest_suffix_and_all_its_places_are_found(store: list[list[int]], text: list[int]) -> None:
    array = SuffixArray(store)
    length, found = array.longest_match(text)
    expected, places = matches(store, text)
    assert length == expected
    assert len(found) == len(places)
    behind = sorted(array.following(place, 4) for place in array.latest(found, len(found)))
    assert behind == sorted(tuple(store[number][end : end + 4]) for number, end in places)


@given(st.lists(st.tuples(texts, st.sets(st.integers(0, 12))), max_size=4), tokens)
def test_texts_one_by_one_draft_as_together(steps: list[tuple[list[list[int]], set[int]]], text: list[int]) -> None:
    store, left, keys = Datastore(), dict[int, list[int]](), count()
    for added, gone in steps:
        new = {next(keys): each for each in added}
        left = {key: each for key, each in left.items() if key not in gone} | new
        store.update(new, gone)
        assert store.keys == left.keys()
    together = Datastore()
    together.update(left)
    assert store.continuation(text, 6) == together.continuation(text, 6)


def test_a_text_takes_the_place_of_one_with_its_key() -> None:
    store = filled({1: STORY[:20], 2: STORY[20:40]})
    store.update({1: STORY[40:]})
    assert store.keys == {1, 2}
    assert store.continuation(STORY[:17], 1) == []
    assert store.continuation(STORY[40:57], 1) == [(STORY[57], 1)]


@given(texts, tokens, st.sets(st.integers(0, 4)), st.booleans())
def test_left_out_texts_draft_none(store: list[list[int]], text: list[int], without: set[int], several: bool) -> None:
    """The remaining texts draft as if there were no others, also where the same text is stored twice."""
    own = [[*each, *text] for each in store]
    whole, rest = Datastore(), Datastore()
    for keys in (range(len(own) // 2), range(len(own) // 2, len(own))) if several else (range(len(own)),):
        whole.update({key: own[key] for key in keys})
    rest.update({key: tokens for key, tokens in enumerate(own) if key not in without})
    for length in range(len(text) + 1):
        assert whole.continuation(text[:length], 4, without=without) == rest.continuation(text[:length], 4)


def test_a_continuation_ends_where_its_text_ends_or_matches_go_apart() -> None:
    store = Datastore()
    store.update({1: STORY[:20], 2: [*STORY[:12], 5, 6]})
    assert [token for token, _ in store.continuation(STORY[:8], 16)] == STORY[8:12]
    assert store.continuation(STORY[:12], 16) == []
    assert [token for token, _ in store.continuation(STORY[:13], 16)] == STORY[13:20]
    assert store.continuation(STORY[:13], 2)[0][0] == STORY[13]


def test_the_oldest_texts_are_forgotten_where_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TOKENS", 400)
    monkeypatch.setattr(module, "WANTED_TOKENS", 350)
    monkeypatch.setattr(module, "FEW", 100)
    store, most = Datastore(), 0
    for key in range(40):
        store.update({key: [key] * 30})
        most = max(most, len(store.keys))
        assert key in store.keys
        assert store.keys == set(range(min(store.keys), key + 1))
    assert 350 // 31 <= most <= 400 // 31
    assert store.continuation([39] * 9, 1) == [(39, 1)]
    assert store.continuation([0] * 9, 1) == []


def drafted(row: SequenceState, drafter: SuffixDrafter) -> tuple[list[int], list[int], str]:
    """Tokens, buckets, and where they come from."""
    drafter.admit(row)
    (made,) = drafter.propose([RowOrder(row, 8)])
    drafter.release(row)
    return [*made.tokens], [*made.buckets], "".join(source.name for source in made.sources)


def filled(texts: Mapping[int, Sequence[int]]) -> Datastore:
    store = Datastore()
    store.update(texts)
    return store


def test_the_longer_match_drafts_that_of_the_chat_or_that_of_others() -> None:
    drafter = SuffixDrafter(datastore=filled({1: STORY}))
    short = [*STORY[18:20], 1, 2, *STORY[:20]]
    assert drafted(row_of(short), drafter)[::2] == (STORY[20:28], OTHER_CHATS)
    own = [*STORY[:20], 1, 2, *STORY[:20]]
    assert drafted(row_of(own), drafter)[::2] == ([1, 2, *STORY[:6]], "suffix")
    assert drafted(row_of([1, 2, 3]), drafter) == ([], [], "suffix")
    assert drafted(row_of(short), SuffixDrafter(datastore=Datastore()))[2] == ""


def test_other_chats_draft_no_turn_marks_and_nothing_behind_an_end() -> None:
    drafter = SuffixDrafter(ends={STORY[22]}, never={STORY[32]}, datastore=filled({1: STORY}))
    assert drafted(row_of(STORY[:20]), drafter)[0] == STORY[20:23]
    assert drafted(row_of(STORY[:30]), drafter)[0] == STORY[30:32]


def test_a_reply_is_not_drafted_from_itself() -> None:
    drafter = SuffixDrafter(datastore=filled({1: STORY, 2: STORY[4:22]}))
    row = row_of(STORY[:20])
    row.request = replace(row.request, not_drafted_from=(1,))
    drafter.admit(row)
    assert drafter.propose([RowOrder(row, 8)])[0].tokens == STORY[20:22]
    row.request = replace(row.request, request_id="other", not_drafted_from=(1, 2))
    drafter.admit(row)
    assert drafter.propose([RowOrder(row, 8)])[0].tokens == []


def test_a_reply_whose_passes_must_repeat_does_not_depend_on_other_chats() -> None:
    drafter = SuffixDrafter(datastore=filled({1: STORY}))
    for steady in (True, False):
        row = row_of(STORY[:20], request=ask("r", sampling=Sampling(temperature=1.0, seed=3)))
        row.steady = steady
        assert bool(drafted(row, drafter)[0]) is not steady
