"""The records: what a round says about its tokens."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from specchat.engine import Fate, Round
from tests.engine.records import EVERY_RECORD, make_round


def fates(record: Round) -> list[str]:
    return [token.fate.value for token in record.tokens()]


def test_a_rejection_is_followed_by_discarded_tokens_and_the_correction() -> None:
    record = make_round(drafted=4, accepted=1, rejected=True)
    assert fates(record) == ["accepted", "rejected", "discarded", "discarded", "correction"]
    assert record.tested == 2
    assert record.emitted == (record.drafted[0], record.last)


def test_full_acceptance_ends_with_a_bonus() -> None:
    record = make_round(drafted=3, accepted=3)
    assert fates(record) == ["accepted", "accepted", "accepted", "bonus"]
    assert record.tested == 3
    assert record.emitted == (*record.drafted, record.last)


def test_the_first_token_can_be_the_rejected_one() -> None:
    record = make_round(drafted=2, accepted=0, rejected=True)
    assert fates(record) == ["rejected", "discarded", "correction"]
    assert record.emitted == (record.last,)


def test_a_round_without_a_draft_has_one_plain_token() -> None:
    record = make_round(drafted=0, accepted=0)
    assert fates(record) == ["plain"]
    assert record.tested == 0


def test_a_reply_that_ends_inside_the_accepted_tokens_has_no_last_token() -> None:
    record = replace(make_round(drafted=2, accepted=2), last=None, last_fate=None, last_piece="")
    assert fates(record) == ["accepted", "accepted"]
    assert record.emitted == record.drafted


def test_the_text_is_that_of_the_emitted_tokens_only() -> None:
    record = replace(
        make_round(drafted=3, accepted=1, rejected=True), pieces=(" the", " wrong", " one"), last_piece=" right"
    )
    assert record.text == " the right"
    assert [token.text for token in record.tokens()] == [" the", " wrong", " one", " right"]


def test_tokens_are_numbered_in_screen_order() -> None:
    assert [token.place for token in make_round(drafted=3, accepted=1, rejected=True).tokens()] == [0, 1, 2, 3]


def test_a_round_lasts_as_long_as_its_three_parts() -> None:
    assert replace(make_round(), draft_s=0.25, verify_s=0.5, rest_s=0.125).seconds == 0.875


def test_every_fate_is_drawn_by_some_round() -> None:
    rounds = [
        make_round(drafted=4, accepted=1, rejected=True),
        make_round(drafted=1, accepted=1),
        make_round(drafted=0),
        replace(make_round(drafted=0), judged=0, last_fate=Fate.UNKNOWN),
    ]
    assert {fate for record in rounds for fate in fates(record)} == {fate.value for fate in Fate}


@pytest.mark.parametrize("record", EVERY_RECORD, ids=lambda record: type(record).__name__)
def test_records_are_immutable_and_can_be_sent_to_another_process(record: object) -> None:
    assert pickle.loads(pickle.dumps(record)) == record
    name = next(iter(type(record).__slots__))  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError):
        setattr(record, name, None)
