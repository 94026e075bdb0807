"""The records: what a round says about its tokens."""

from dataclasses import replace

import pytest

from specchat.engine import Round
from tests.engine.records import make_round


def fates(record: Round) -> list[str]:
    return [token.fate.value for token in record.tokens()]


@pytest.mark.parametrize(
    ("drafted", "accepted", "rejected", "expected"),
    [
        (4, 1, True, ["accepted", "rejected", "discarded", "discarded", "correction"]),
        (3, 3, False, ["accepted", "accepted", "accepted", "bonus"]),
        (2, 0, True, ["rejected", "discarded", "correction"]),
        (0, 0, False, ["plain"]),
    ],
)
def test_fates_follow_from_what_was_accepted(drafted: int, accepted: int, rejected: bool, expected: list[str]) -> None:
    record = make_round(drafted=drafted, accepted=accepted, rejected=rejected)
    assert fates(record) == expected
    assert record.tested == accepted + rejected
    assert record.emitted == (*record.drafted[:accepted], record.last)
    assert [token.place for token in record.tokens()] == list(range(drafted + 1))


def test_a_reply_that_ends_inside_the_accepted_tokens_has_no_last_token() -> None:
    record = replace(make_round(drafted=2, accepted=2), last=None, last_fate=None, last_piece="")
    assert fates(record) == ["accepted", "accepted"]
    assert record.emitted == record.drafted


def test_the_text_is_made_of_the_emitted_tokens_only() -> None:
    record = replace(make_round(drafted=3, accepted=1, rejected=True), pieces=("a", "b", "c"), last_piece="d")
    assert record.text == "ad"
    assert [token.text for token in record.tokens()] == ["a", "b", "c", "d"]
