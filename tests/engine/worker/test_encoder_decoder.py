"""T5 as a target: the target's own choices whatever drafts, one by one and together; sampled; what it cannot have."""

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from specchat.engine import (
    Engine,
    EngineError,
    Finished,
    Message,
    Request,
    Round,
)
from specchat.engine.research.tables import LoadedTables
from tests.engine.pretend_cuda import parts_to_gpu, pretended_gpu
from tests.engine.sampled import check_distribution, sampled
from tests.engine.tiny import ids_of, notices_of, rounds_of, run_together, tiny_engine, tiny_tables
from tests.engine.tiny_t5 import CONTEXT, PAD, VOCABULARY, tiny_t5, tiny_t5_network, tiny_t5_tokenizer
from tests.engine.turns import Turns

SOURCES = [
    "translate English to German: the house is wonderful.", "x", "summarize: aaaa bbbb aaaa bbbb", "q" * (CONTEXT - 1),
]  # fmt: skip
TOKENS = 24
SLOW = pytest.mark.slow


def tables() -> LoadedTables:
    """Counted in the sources, which have hardly any token of the replies: q is seldom p."""
    draws = random.Random(0)
    return tiny_tables([draws.randrange(VOCABULARY // 2) for _ in range(4000)], VOCABULARY)


@pytest.fixture(scope="module", params=[pytest.param(False, id="T5", marks=SLOW), pytest.param(True, id="T5 1.1")])
def gated(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def engine(gated: bool) -> Iterator[Engine]:
    target, draft = tiny_t5(gated=gated), tiny_t5(gated=gated, noise=0.1)
    with tiny_engine(target, draft, tables=tables()) as running:
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


def test_greedy_replies_are_those_of_transformers(engine: Engine, generated: dict[str, list[int]]) -> None:
    ready = engine.wait_ready()
    assert set(ready.drafters) == {
        *("model", "model-tree", "hierarchical", "bigram", "unigram"),
        *("suffix", "ngram", "copy", "random", "none"),
    }
    assert not ready.conversations
    accepted = dict.fromkeys(ready.drafters, 0)
    requests = [
        Request(f"{drafter} {source}", prompt=source, drafter=drafter, gamma=(3, 5, None, 4)[i], max_tokens=TOKENS)
        for drafter in ready.drafters
        for i, source in enumerate(SOURCES)
    ]
    for request, events in zip(requests, run_together(engine, requests), strict=True):
        assert ids_of(events) == generated[request.prompt or ""], request.request_id
        accepted[request.drafter] += sum(event.accepted for event in rounds_of(events))
    assert all(accepted[name] for name in ("model", "model-tree", "hierarchical", "suffix"))


def test_a_reply_goes_on_behind_given_tokens(engine: Engine, generated: dict[str, list[int]]) -> None:
    for source, drafter in product(SOURCES[:3], ("model", "suffix", "none")):
        whole = generated[source]
        given = tuple(whole[:5])
        request = Request("r", prompt=source, drafter=drafter, reply_ids=given, max_tokens=len(whole) - 5)
        events = list(engine.stream(request))
        assert ids_of(events) == whole[5:]
        admitted = events[0]
        assert admitted.prompt_tokens == len(source) + 1 + len(given)


def test_what_it_cannot_have_is_refused_by_name(engine: Engine) -> None:
    refused = (
        (Request("r", (Message("user", "hello"),)), "tiny-t5 reads one text and holds no conversation"),
        (Request("r", prompt="q" * CONTEXT), f"the prompt has {CONTEXT + 1} tokens and the encoder reads {CONTEXT} at"),
        (Request("r", prompt="x", reply_ids=(9,) * CONTEXT), f"and the context holds {CONTEXT + 1}"),
        (Request("r", prompt="x", drafter="head"), "drafter 'head' is not available"),
    )
    for request, sentence in refused:
        (end,) = engine.stream(request)
        assert isinstance(end, Finished)
        assert sentence in end.message
    with pytest.raises(EngineError, match="holds no conversation"):
        engine.prompt_ids(refused[0][0])
    assert engine.prompt_ids(Request("r", prompt="x")) == tiny_t5_tokenizer().encode("x")


def test_on_a_gpu_it_runs_without_graphs_and_says_so(
    generated: dict[str, list[int]], gated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pretended_gpu(monkeypatch) as gpu:
        parts = [tiny_t5(gated=gated), tiny_t5(gated=gated, noise=0.1)]
        target, draft = parts_to_gpu(*parts)
        turns = Turns(target, {"draft": draft, "tables": tables()}, slots=2, context=CONTEXT)
        options: dict[str, Any] = {"drafter": "model", "gamma": 4, "max_tokens": TOKENS}
        turns.submit([Request(source, prompt=source, **options) for source in SOURCES[:2]])
        events = []
        while turns.busy:
            gpu.waits.clear()
            events += turns.turn()
            assert len(gpu.waits) <= 1, gpu.waits
    slower = "tiny-t5: its passes are not captured as CUDA graphs: it runs slower"
    assert any(slower in text for text in notices_of(events))
    for source in SOURCES[:2]:
        own = [event for event in events if getattr(event, "request_id", None) == source]
        assert ids_of(own) == generated[source]


@pytest.mark.parametrize("drafter", ["model", "model-tree", "bigram"])
@pytest.mark.slow
def test_sampled_replies_have_the_distribution_of_the_target(engine: Engine, gated: bool, drafter: str) -> None:
    source = tuple(tiny_t5_tokenizer().encode(SOURCES[2]))
    events = sampled(engine, drafter, source, 600)
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
