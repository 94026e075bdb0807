"""T5 as a target: the target's own choices whatever drafts, one by one and together; sampled; what it cannot have."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch import Tensor

from specchat.engine import Admitted, Engine, Prefilled, Request, Round
from specchat.engine.speculation.drafters.tables.counts import TokenCounter
from specchat.engine.speculation.drafters.tables.folder import LoadedTables
from specchat.engine.worker.assembly import put_together
from tests.engine.sampled import check_distribution, sampled
from tests.engine.tiny import ids_of, run_together, text_of, tiny_engine
from tests.engine.tiny_t5 import CONTEXT, PAD, VOCABULARY, tiny_t5, tiny_t5_network, tiny_t5_tokenizer

SOURCES = [
    "translate English to German: the house is wonderful.",
    "x",
    "summarize: aaaa bbbb aaaa bbbb",
    "q" * (CONTEXT - 1),
]
TOKENS = 24


def tables() -> LoadedTables:
    """Counted in the sources, which have hardly any token of the replies: q is seldom p."""
    counter = TokenCounter(VOCABULARY)
    draws = random.Random(0)
    counter.add(torch.tensor([draws.randrange(VOCABULARY // 2) for _ in range(4000)]).numpy())
    return LoadedTables(counter.counts(), "tables")


@pytest.fixture(scope="module", params=[False, True], ids=["T5", "T5 1.1"])
def gated(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def engine(gated: bool) -> Iterator[Engine]:
    target, draft = tiny_t5(gated=gated), tiny_t5(gated=gated, noise=0.1)
    with tiny_engine(assemble=lambda config, _: put_together(config, target, draft, tables=tables())) as running:
        yield running


@pytest.fixture(scope="module")
def generated(gated: bool) -> dict[str, list[int]]:
    """What transformers itself writes, by source."""
    network, tokenizer = tiny_t5_network(gated=gated), tiny_t5_tokenizer()
    found = {}
    for source in SOURCES:
        ids = torch.tensor([tokenizer.encode(source)])
        found[source] = network.generate(ids, max_new_tokens=TOKENS, do_sample=False)[0, 1:].tolist()
    return found


def test_greedy_replies_are_those_of_transformers_whatever_drafts(
    engine: Engine, generated: dict[str, list[int]]
) -> None:
    ready = engine.wait_ready()
    assert set(ready.drafters) == {
        *("model", "model-tree", "hierarchical", "bigram", "unigram"),
        *("suffix", "ngram", "copy", "recycling", "random", "none"),
    }
    assert not ready.conversations
    accepted = dict.fromkeys(ready.drafters, 0)
    for drafter, source in product(ready.drafters, SOURCES):
        events = list(engine.stream(Request("r", prompt=source, drafter=drafter, gamma=4, max_tokens=TOKENS)))
        assert ids_of(events) == generated[source], drafter
        accepted[drafter] += sum(event.accepted for event in events if isinstance(event, Round))
    assert all(accepted[name] for name in ("model", "model-tree", "hierarchical", "suffix", "recycling"))


def test_rows_of_different_lengths_run_together(engine: Engine, generated: dict[str, list[int]]) -> None:
    drafters = engine.wait_ready().drafters
    requests = [
        Request(f"{drafter} {source}", prompt=source, drafter=drafter, gamma=(3, 5, None)[i], max_tokens=TOKENS)
        for drafter in drafters
        for i, source in enumerate(SOURCES[:3])
    ]
    for request, events in zip(requests, run_together(engine, requests), strict=True):
        assert ids_of(events) == generated[request.prompt or ""], request.request_id


def test_a_slot_forgets_its_source_and_nothing_is_shared(engine: Engine, generated: dict[str, list[int]]) -> None:
    for source in (SOURCES[3], SOURCES[1], SOURCES[3]):
        events = list(engine.stream(Request("r", prompt=source, drafter="model-tree", max_tokens=TOKENS)))
        assert ids_of(events) == generated[source]
        admitted = events[0]
        assert isinstance(admitted, Admitted)
        assert (admitted.prompt_tokens, admitted.reused_tokens) == (len(source) + 1, 0)
        (read,) = (event for event in events if isinstance(event, Prefilled))
        assert (read.done, read.total) == (len(source) + 1, len(source) + 1)
        first = next(event for event in events if isinstance(event, Round))
        assert first.position == admitted.prompt_tokens


def test_a_reply_goes_on_behind_given_tokens(engine: Engine, generated: dict[str, list[int]]) -> None:
    for source, drafter in product(SOURCES[:3], ("model", "suffix", "none")):
        whole = generated[source]
        given = tuple(whole[:5])
        request = Request("r", prompt=source, drafter=drafter, reply_ids=given, max_tokens=len(whole) - 5)
        events = list(engine.stream(request))
        assert ids_of(events) == whole[5:]
        admitted = events[0]
        assert isinstance(admitted, Admitted)
        assert admitted.prompt_tokens == len(source) + 1 + len(given)


def test_the_text_is_that_of_the_tokens(engine: Engine, generated: dict[str, list[int]]) -> None:
    for source in SOURCES:
        text = tiny_t5_tokenizer().decode(generated[source], skip_special_tokens=True)
        assert text_of(list(engine.stream(Request("r", prompt=source, max_tokens=TOKENS)))) == text


@pytest.mark.parametrize("drafter", ["model", "model-tree", "bigram"])
@pytest.mark.slow
def test_sampled_replies_have_the_distribution_of_the_target(engine: Engine, gated: bool, drafter: str) -> None:
    source = tuple(tiny_t5_tokenizer().encode(SOURCES[2]))
    events = sampled(engine, drafter, source, 900)
    network = tiny_t5_network(gated=gated)

    @torch.inference_mode()
    def behind(tokens: list[int]) -> Tensor:
        written = torch.tensor([[PAD, *tokens[len(source) :]]])
        p: Tensor = network(input_ids=torch.tensor([source]), decoder_input_ids=written).logits[0, -1].softmax(-1)
        return p

    assert check_distribution(events, source, behind) > 1
    rounds = [event for each in events for event in each if isinstance(event, Round)]
    assert any(each.accepted for each in rounds)
    assert any(each.accepted < each.tested for each in rounds)
