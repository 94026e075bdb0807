"""The top-k view of a round agrees with the numbers of its record."""

import math

import pytest

from specchat.engine import Fate, Request, Round, Sampling, from_json, to_json
from tests.engine.tiny import VOCABULARY, ask, ids_of, rounds_of, run_together, tiny_engine, tiny_head, tiny_model

SAMPLED = Sampling(temperature=1.0, top_k=20, seed=4)


def answer(request: Request) -> list[Round]:
    with tiny_engine(draft=tiny_model(seed=9, hidden=16)) as engine:
        return rounds_of(engine.stream(request))


@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
def test_every_judged_position_has_one(drafter: str) -> None:
    for r in answer(ask("abcabcabc", drafter=drafter, max_tokens=40, sampling=SAMPLED, detail=20)):
        assert len(r.detail) == r.tested + (r.last is not None)
        for i in range(r.tested):
            shown = {c.id: c.probability for c in r.detail[i].target}
            assert shown.get(r.drafted[i], 0.0) == pytest.approx(r.p[i], abs=1e-6)
            drafted = {c.id: c.probability for c in r.detail[i].draft}
            assert drafted.get(r.drafted[i], 0.0) == pytest.approx(r.q[i], abs=1e-6)
            assert sum(shown.values()) == pytest.approx(1.0, abs=1e-5)
            overlap = sum(min(p, drafted.get(token, 0.0)) for token, p in shown.items())
            assert overlap == pytest.approx(r.beta[i], abs=1e-5)
            entropy = -sum(p * math.log(p) for p in shown.values())
            assert r.detail[i].target_entropy == pytest.approx(entropy, abs=1e-4)


@pytest.mark.daily(3)
@pytest.mark.parametrize("drafter", ["none", "model", "head"])
@pytest.mark.parametrize("sampling", [SAMPLED, Sampling()], ids=["sampled", "greedy"])
def test_each_has_the_probability_of_its_own_token(drafter: str, sampling: Sampling) -> None:
    """Also of a token that the top-k list has no room for, and where a tree's p is a residual."""
    seen = 0
    for k in (VOCABULARY, 1):
        target = tiny_model()
        with tiny_engine(target, tiny_model(seed=9, hidden=16), tiny_head(target)) as engine:
            request = ask("abcabcabc", drafter=drafter, gamma=3, max_tokens=40, sampling=sampling, detail=k)
            rounds = rounds_of(engine.stream(request))
        if k > 1:
            whole = [each.probability for r in rounds for each in r.detail]
            for r in rounds:
                ids = [*r.drafted[: r.tested], *(() if r.last is None else (r.last,))]
                for token, each in zip(ids, r.detail, strict=True):
                    listed = {c.id: c.probability for c in each.target}
                    assert each.probability == pytest.approx(listed.get(token, 0.0), abs=1e-6)
                    seen += 1
        else:
            assert [each.probability for r in rounds for each in r.detail] == whole
    assert seen > 20


def test_a_correction_shows_the_residual_it_was_drawn_from() -> None:
    corrections = [
        r
        for r in answer(ask("abcabcabc", drafter="model", max_tokens=60, sampling=SAMPLED, detail=20))
        if r.last_fate is Fate.CORRECTION
    ]
    assert corrections
    for r in corrections:
        at = r.detail[-1]
        target, draft = ({c.id: c.probability for c in side} for side in (at.target, at.draft))
        left = {token: max(0.0, p - draft.get(token, 0.0)) for token, p in target.items()}
        for candidate in at.residual:
            assert candidate.probability == pytest.approx(left[candidate.id] / sum(left.values()), abs=1e-4)
        assert r.last in {candidate.id for candidate in at.residual}


def test_only_who_asks_gets_details_and_nobody_else_changes() -> None:
    with tiny_engine() as engine:
        plain, detailed = run_together(
            engine, [ask("abcabc", "a", sampling=SAMPLED), ask("abcabc", "b", sampling=SAMPLED, detail=5)]
        )
    assert ids_of(plain) == ids_of(detailed)
    assert not any(r.detail for r in rounds_of(plain))
    assert all(from_json(to_json(r)) == r for r in rounds_of(detailed))
