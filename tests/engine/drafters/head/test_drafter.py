"""The head as a drafter: exact whatever it drafts, and the same whatever else runs and whatever went before."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specchat.engine import Admitted, Request, Round, Sampling
from specchat.engine.drafters.head.drafter import HeadMemory
from specchat.engine.drafters.head.network import DraftHead
from specchat.engine.drafters.head.torch_layer import TorchLayer
from tests.engine.drafters.heads import row_in, scores_along
from tests.engine.tiny import ask, ids_of, run_together, tiny_engine, tiny_head, tiny_model


def test_the_combined_drafter_names_the_one_that_drafted() -> None:
    target = tiny_model()
    with tiny_engine(target, head=tiny_head(target)) as engine:
        rounds = {
            drafter: [
                event
                for event in engine.stream(ask("abcabcab", drafter=drafter, gamma=4, max_tokens=50))
                if isinstance(event, Round) and event.drafted
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


@pytest.mark.parametrize("before", ["head", "none"])
def test_a_follow_up_drafts_as_a_fresh_engine_would(before: str) -> None:
    target = tiny_model()
    head = tiny_head(target)
    prompt = tuple(range(97, 117)) * 3

    def follow(tokens: tuple[int, ...]) -> Request:
        sampling = Sampling(temperature=1.0, seed=2)
        return Request("two", prompt_ids=tokens, drafter="head", max_tokens=12, sampling=sampling)

    with tiny_engine(target, head=head) as engine:
        reply = ids_of(list(engine.stream(Request("one", prompt_ids=prompt, drafter=before, max_tokens=20))))
        more = (*prompt, *reply, 100, 101, 102)
        events = list(engine.stream(follow(more)))
        admitted = events[0]
        assert isinstance(admitted, Admitted)
        assert (admitted.reused_tokens > len(prompt)) is (before == "head")
    with tiny_engine(target, head=head) as fresh:
        again = list(fresh.stream(follow(more)))
    rounds = [(e.drafted, e.accepted, e.last) for e in events if isinstance(e, Round)]
    assert rounds == [(e.drafted, e.accepted, e.last) for e in again if isinstance(e, Round)]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1, seed=3)])
def test_a_round_says_what_became_of_every_token_of_its_tree(sampling: Sampling) -> None:
    target = tiny_model()
    with tiny_engine(target, head=tiny_head(target)) as engine:
        request = ask("hello", drafter="head", gamma=4, max_tokens=60, sampling=sampling, detail=5)
        rounds = [event for event in engine.stream(request) if isinstance(event, Round)]
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


def test_places_may_be_read_in_any_order_and_together() -> None:
    target = tiny_model()
    head = tiny_head(target).head
    assert isinstance(head, DraftHead)
    torch.manual_seed(1)
    tapped = torch.randn(2, 60, head.shape.hidden * len(head.shape.taps))

    def read(*slots: int) -> Tensor:
        layer = TorchLayer(head, torch.nn.Identity(), target.model.get_input_embeddings(), 2, 64, window=32)
        memory = HeadMemory(layer, 2)
        rows = [row_in(slot, [(7 * i + n) % 250 for i in range(n)]) for slot, n in enumerate((50, 4))]
        for row in rows:
            memory.admit(row)
            memory.absorb([row], tapped[row.slot : row.slot + 1, : len(row.tokens) - 1])
            row.cached = len(row.tokens) - 1
        return scores_along(layer, memory, [rows[slot] for slot in slots])[0]

    together = read(0, 1)
    for slot in (0, 1):
        torch.testing.assert_close(read(slot)[0], together[slot])


def test_the_combined_drafter_asks_the_head_only_where_the_text_does_not_repeat() -> None:
    target = tiny_model()
    repeating = tuple(range(97, 107)) * 3
    with tiny_engine(target, head=tiny_head(target)) as engine:
        for prompt, by_ngram in ((repeating, True), (tuple(range(97, 117)), False)):
            request = Request("r", prompt_ids=prompt, drafter="combined", gamma=4, max_tokens=6)
            first = next(event for event in engine.stream(request) if isinstance(event, Round))
            assert first.drafter == "combined"
            assert (first.drafted == tuple(range(97, 101))) is by_ngram


def test_a_drafter_changed_to_in_the_middle_reads_what_it_has_missed() -> None:
    target = tiny_model()
    with tiny_engine(target, head=tiny_head(target)) as engine:
        plain = ids_of(list(engine.stream(ask("hello", drafter="none", max_tokens=60))))
        events = []
        for event in engine.stream(ask("hello", drafter="none", max_tokens=60)):
            events.append(event)
            if isinstance(event, Round) and event.number == 5:
                engine.adjust("r", "head", 3)
        assert ids_of(events) == plain
        assert {event.drafter for event in events if isinstance(event, Round)} == {"none", "head"}


def test_requests_that_run_together_share_what_the_head_has_read() -> None:
    target = tiny_model()
    prompt = tuple(range(97, 117)) * 5
    sampling = [Sampling(temperature=1.0, seed=i) for i in range(4)]
    with tiny_engine(target, head=tiny_head(target), chunk=16) as engine:
        requests = [
            Request(f"r{i}", prompt_ids=prompt, drafter="head", max_tokens=12, sampling=s)
            for i, s in enumerate(sampling)
        ]
        together = [ids_of(events) for events in run_together(engine, requests)]
    with tiny_engine(target, head=tiny_head(target), slots=1) as engine:
        assert [ids_of(list(engine.stream(request))) for request in requests] == together
