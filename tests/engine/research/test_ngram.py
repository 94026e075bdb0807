"""The n-gram predictor, by the source's own trace and rules."""

from __future__ import annotations

from specchat.engine.research.ngram import MAX_HISTORY, NGramPredictor


def predictor(*tokens: int) -> NGramPredictor:
    made = NGramPredictor()
    made.extend(tokens)
    return made


def drafted(made: NGramPredictor, count: int) -> list[int]:
    return made.predict(count)[0]


def test_nothing_seen_means_nothing_drafted() -> None:
    assert drafted(predictor(), 4) == []
    assert drafted(predictor(1, 2, 3), 4) == []


def test_predictions_chain_through_their_own_tokens() -> None:
    assert drafted(predictor(1, 2, 3, 4, 5, 6, 1), 4) == [2, 3, 4, 5]
    assert drafted(predictor(1, 2, 3, 4, 5, 6, 1), 2) == [2, 3]


def test_the_longest_context_wins_over_a_more_frequent_shorter_one() -> None:
    # After 3: mostly 9. After (1, 2, 3): 4.
    assert drafted(predictor(3, 9, 3, 9, 3, 9, 1, 2, 3, 4, 7, 1, 2, 3), 1) == [4]


def test_it_backs_off_order_by_order() -> None:
    seen = (1, 2, 3, 4, 8)
    assert drafted(predictor(*seen, 9, 2, 3), 1) == [4], "order 3: (2, 3)"
    assert drafted(predictor(*seen, 9, 9, 3), 1) == [4], "order 2: (3)"


def test_the_most_frequent_continuation_wins_and_the_latest_breaks_ties() -> None:
    assert drafted(predictor(1, 5, 1, 5, 1, 6, 1), 1) == [5]
    assert drafted(predictor(1, 5, 1, 6, 1), 1) == [6]


def test_the_draft_stops_where_nothing_is_known() -> None:
    assert drafted(predictor(1, 2, 3, 9, 1), 8)[:3] == [2, 3, 9]
    assert drafted(predictor(7, 8, 7), 1) == [8]
    assert drafted(predictor(1, 2, 5, 1), 8)[:2] == [2, 5]


def test_updates_as_tokens_come_equal_one_update() -> None:
    tokens = [1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2]
    piecemeal = NGramPredictor()
    for token in tokens:
        piecemeal.extend([token])
    assert drafted(piecemeal, 6) == drafted(predictor(*tokens), 6)


def test_counts_outlive_the_window_of_contexts() -> None:
    made = predictor(1, 2, 3)
    made.extend([9] * (MAX_HISTORY + 10))
    made.extend([1, 2])
    assert drafted(made, 1) == [3]
    assert len(made._history) == MAX_HISTORY


def test_each_token_comes_with_the_order_of_its_ngram() -> None:
    assert predictor(1, 2, 3, 4, 5, 1).predict(4) == ([2, 3, 4, 5], [2, 3, 4, 4])


def test_nothing_is_drafted_behind_an_end_and_turn_marks_never() -> None:
    made = NGramPredictor(ends={3}, never={4})
    made.extend([1, 2, 3, 5, 6, 4, 7, 1])
    assert drafted(made, 8) == [2, 3]
    made.extend([5])
    assert drafted(made, 8) == [6]
