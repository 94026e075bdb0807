"""The head as a drafter: exact whatever it drafts, and the same whatever else runs and whatever went before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specchat.engine import Admitted, Request, Round, Sampling
from specchat.engine.drafters.head.memory import HeadMemory
from specchat.engine.drafters.head.torch_layer import TorchLayer
from specchat.engine.drafters.published.load import load_published
from specchat.engine.sequence.sequence import SequenceState
from tests.engine.chi_square import z_score
from tests.engine.published_heads import KINDS, LAYERS, write
from tests.engine.tiny import ask, assert_the_same_in_a_batch, ids_of, run_together, tiny_engine, tiny_head, tiny_model

TEXTS = (
    "hello",
    "a much longer text, with which the head has more to read at once than it reads in a round",
    "x",
    "hi",
)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("gamma", [1, 4, 9, None])
def test_greedy_output_is_the_targets_own(text: str, gamma: int | None) -> None:
    target = tiny_model()
    with tiny_engine(target, head=tiny_head(target)) as engine:
        plain = ids_of(list(engine.stream(ask(text, drafter="none", max_tokens=50))))
        for drafter in ("head", "combined"):
            assert ids_of(list(engine.stream(ask(text, drafter=drafter, gamma=gamma, max_tokens=50)))) == plain


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


@pytest.mark.parametrize(
    "kind", ["own", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("eagle-3", "medusa", "medusa of ours"))]
)
def test_sampled_output_has_the_targets_distribution_though_the_head_knows_few_tokens(
    kind: str, tmp_path: Path
) -> None:
    # A head that knows 30 of 260 tokens is wrong most of the time: the residual has to make up for it.
    layers = 2 if kind == "own" else LAYERS
    target, plain = (tiny_model(sharpness=4.0, layers=layers) for _ in range(2))  # a runner changes its attention
    prompt = (104, 105, 33, 10, 7)
    sampling = [Sampling(temperature=1.0, seed=seed) for seed in range(3000)]
    if kind == "own":
        head = tiny_head(target, vocabulary=30)
    else:
        head = load_published(write(tmp_path, *KINDS[kind][0]()), target)
    with tiny_engine(target, head=head, slots=16, queue=3000) as engine:
        requests = [
            Request(f"r{i}", prompt_ids=prompt, drafter="head", gamma=2, max_tokens=2, sampling=s)
            for i, s in enumerate(sampling)
        ]
        replies = [ids_of(events) for events in run_together(engine, requests)]
    first = torch.tensor([reply[0] for reply in replies])
    with torch.inference_mode():
        p = plain.model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
    assert abs(z_score(first, p)) < 4
    common = int(first.bincount().argmax())
    second = torch.tensor([reply[1] for reply in replies if reply[0] == common and len(reply) > 1])
    with torch.inference_mode():
        p = plain.model(torch.tensor([[*prompt, common]])).logits[0, -1].softmax(-1)
    assert abs(z_score(second, p)) < 4


def test_what_it_drafts_is_what_it_drafts_with() -> None:
    target = tiny_model(sharpness=3.0)
    head = tiny_head(target, vocabulary=50)
    with tiny_engine(target, head=head) as engine:
        request = ask("hello", drafter="head", gamma=4, max_tokens=40, sampling=Sampling(temperature=1.0, seed=5))
        rounds = [event for event in engine.stream(request) if isinstance(event, Round)]
    drafted = [token for r in rounds for token in r.drafted]
    assert drafted
    assert set(drafted) <= set(head.vocabulary.tolist())
    assert all(q > 0 for r in rounds for q in r.q)


def test_a_seeded_reply_is_the_same_alone_and_in_any_batch() -> None:
    target = tiny_model()
    with tiny_engine(target, head=tiny_head(target)) as engine:
        requests = [
            ask(text, name=f"{text}{drafter}", drafter=drafter, max_tokens=40, sampling=Sampling(temperature=1, seed=i))
            for i, text in enumerate(TEXTS)
            for drafter in ("head", "combined", "ngram")
        ]
        assert_the_same_in_a_batch(engine, requests)


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


def test_rows_of_every_kind_share_a_batch() -> None:
    """Trees of several lengths, greedy and drawn, beside chains: where penalties, lenience or a long γ ask for them."""
    target = tiny_model()
    kinds: list[tuple[Sampling, str, int | None]] = [
        (Sampling(), "head", 4),
        (Sampling(), "head", 2),
        (Sampling(temperature=1, seed=1), "head", 4),
        (Sampling(temperature=1, seed=2, top_k=3), "head", 3),
        (Sampling(temperature=1, seed=3), "head", 12),
        (Sampling(temperature=1, seed=4, repetition_penalty=1.2), "head", 4),
        (Sampling(temperature=1, seed=5, lenience=0.5), "head", 4),
        (Sampling(temperature=1, seed=6), "combined", 4),
        (Sampling(temperature=1, seed=7), "ngram", 4),
        (Sampling(temperature=1, seed=8), "none", 0),
    ]
    with tiny_engine(target, head=tiny_head(target), slots=10) as engine:
        requests = [
            ask("abcabcab", name=f"{i}", drafter=drafter, gamma=gamma, max_tokens=30, sampling=sampling)
            for i, (sampling, drafter, gamma) in enumerate(kinds)
        ]
        assert_the_same_in_a_batch(engine, requests)


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


def test_penalties_hold_for_drafts_too() -> None:
    target = tiny_model()
    sampling = Sampling(repetition_penalty=1.3, presence_penalty=0.5, logit_bias=((101, 3.0),))
    with tiny_engine(target, head=tiny_head(target)) as engine:
        plain = ids_of(list(engine.stream(ask("hello", drafter="none", max_tokens=40, sampling=sampling))))
        assert ids_of(list(engine.stream(ask("hello", drafter="head", max_tokens=40, sampling=sampling)))) == plain


def test_places_may_be_read_in_any_order_and_together() -> None:
    target = tiny_model()
    head = tiny_head(target).head
    embed = target.model.get_input_embeddings()
    torch.manual_seed(1)
    size = head.shape.hidden * len(head.shape.taps)
    tapped = torch.randn(2, 60, size)

    def rows(*lengths: int) -> list[SequenceState]:
        texts = [[(7 * i + n) % 250 for i in range(n)] for n in lengths]
        return [SequenceState(None, None, slot, tokens, 1, 0, 0, None, "head") for slot, tokens in enumerate(texts)]  # type: ignore[arg-type]

    def remembered(lengths: tuple[int, ...]) -> tuple[HeadMemory, list[SequenceState]]:
        layer, made = TorchLayer(head, torch.nn.Identity(), embed, 2, 64, window=32), rows(*lengths)
        memory = HeadMemory(layer, 2)
        for i, row in enumerate(made):
            memory.admit(row)
            memory.absorb([row], tapped[i : i + 1, : len(row.tokens) - 1])
            row.cached = len(row.tokens) - 1
        return memory, made

    memory, both = remembered((50, 4))
    together = memory.read(both).logits
    for i in range(2):
        memory, both = remembered((50, 4))
        alone = memory.read([both[i]]).logits
        torch.testing.assert_close(alone[0], together[i])


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
