"""What rounds of the head and of the combined drafter say about their drafts."""

import pytest

from specchat.engine import Sampling
from tests.engine.tiny import ask, rounds_of, tiny_engine, tiny_head, tiny_model


def test_the_combined_drafter_names_the_one_that_drafted() -> None:
    target = tiny_model()
    with tiny_engine(target, head=tiny_head(target)) as engine:
        rounds = {
            drafter: [
                record
                for record in rounds_of(engine.stream(ask("abcabcab", drafter=drafter, gamma=4, max_tokens=50)))
                if record.drafted
            ]
            for drafter in ("head", "combined")
        }
    assert not any(record.proposers for record in rounds["head"])
    named = [[each.name for each in record.proposers] for record in rounds["combined"]]
    assert named == [["head"] if record.offered else ["suffix"] for record in rounds["combined"]]  # which has no trees
    assert ["head"] in named
    assert ["suffix"] in named
    for record in rounds["combined"]:
        assert {record.proposed_by(token) for token in record.tokens()} <= {(record.proposers[0].name,), ()}


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1), Sampling(temperature=1, seed=3)])
def test_a_round_says_what_became_of_every_token_of_its_tree(sampling: Sampling) -> None:
    target = tiny_model()
    with tiny_engine(target, head=tiny_head(target)) as engine:
        request = ask("hello", drafter="head", gamma=4, max_tokens=60, sampling=sampling, detail=5)
        rounds = rounds_of(engine.stream(request))
    assert any(record.offered == 16 for record in rounds)
    assert any(any(others) for record in rounds for others in record.refused)
    for record in rounds:
        if not record.offered:
            continue
        assert record.accepted <= record.steps == record.gamma
        assert len(record.refused) == record.tested
        for place, others in enumerate(record.refused):
            kept = place < record.accepted
            assert (record.u[place] * record.q[place] < record.p[place]) is kept
            assert all(other.u * other.q >= other.p for other in others)
            assert record.drafted[place] not in [other.id for other in others]
            assert 0 <= record.beta[place] <= 1
        assert len(record.detail) == record.tested + 1
        last = {candidate.id: candidate.probability for candidate in record.detail[-1].target}
        assert record.last not in last or last[record.last] > 0
        if record.accepted < record.tested and not sampling.greedy:
            refused = {record.drafted[record.accepted], *(other.id for other in record.refused[record.accepted])}
            residual = [candidate.id for candidate in record.detail[-1].residual]
            assert record.last in residual or len(residual) == 5
            assert record.last not in refused or record.last in residual
