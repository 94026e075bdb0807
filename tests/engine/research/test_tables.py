"""The small drafters of the paper's section 3.6: exact, drawn from what they say, and no better than theory."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
import torch

from specchat.engine import Engine, EngineConfig, Request, Round, Sampling
from specchat.engine.models.load import LoadedModel
from specchat.engine.progress import Progress
from specchat.engine.research.tables import LoadedTables
from specchat.engine.stats.theory import optimal_gamma
from specchat.engine.tools.distill.tables import TokenCounter
from specchat.engine.worker.assembly import Assembly, put_together
from tests.engine.tiny import VOCABULARY, ask, run_together, tiny_engine, tiny_model

TEXT = b"hi! the hi! of the hi! and a hi! or two hi! again, hi!"


@contextmanager
def engine_with_tables(target: LoadedModel, text: list[int] | None = None, slots: int = 4) -> Iterator[Engine]:
    counter = TokenCounter(VOCABULARY)
    counter.add(np.array(text or list(TEXT), dtype=np.int64))
    tables = LoadedTables(counter.counts(), "tables")

    def assemble(config: EngineConfig, progress: Progress) -> Assembly:  # noqa: ARG001
        return put_together(config, target, tables=tables)

    with tiny_engine(slots=slots, queue=4000, assemble=assemble) as engine:
        yield engine


def rounds_of(engine: Engine, request: Request) -> list[Round]:
    return [event for event in engine.stream(request) if isinstance(event, Round)]


def test_sampled_drafts_have_the_distributions_of_the_tables() -> None:
    """A row's q is what it says: the counts behind the token before, standardised; 1 / V at random."""
    counted = torch.zeros(VOCABULARY, VOCABULARY)
    for one, other in pairwise(TEXT):
        counted[one, other] += 1
    sampling = Sampling(temperature=0.5, seed=3)
    with engine_with_tables(tiny_model(sharpness=2.0)) as engine:
        text = list(ask("hi!").messages[0].content.encode())
        for drafter in ("bigram", "random"):
            request = Request("r", prompt_ids=tuple(text), drafter=drafter, gamma=3, max_tokens=30, sampling=sampling)
            tokens, seen = list(text), 0
            for each in rounds_of(engine, request):
                before = [tokens[-1], *each.drafted]
                for place, q in enumerate(each.q):
                    row = counted[before[place]] ** 2  # at temperature 0.5
                    if drafter == "random":
                        assert q == pytest.approx(1 / VOCABULARY)
                    elif row.sum():
                        assert q == pytest.approx((row[each.drafted[place]] / row.sum()).item(), rel=1e-4)
                        seen += 1
                tokens += each.emitted
            assert seen or drafter == "random"


def test_at_random_helps_where_theory_says_so() -> None:
    """α is the mean of Σ min(p, 1/V); by Corollary 3.9 drafting pays where α > c, so for a flat target alone."""
    reached = {}
    for sharpness in (0.0, 30.0):
        target = tiny_model(sharpness=sharpness)
        with tiny_engine(target) as engine:
            requests = [
                ask(
                    "hi!",
                    name=f"r{i}",
                    drafter="random",
                    gamma=3,
                    max_tokens=30,
                    sampling=Sampling(temperature=1, seed=i),
                )
                for i in range(8)
            ]
            rounds = [event for each in run_together(engine, requests) for event in each if isinstance(event, Round)]
        tested = sum(each.tested for each in rounds)
        beta = sum(sum(each.beta) for each in rounds) / tested
        assert beta == pytest.approx(sum(each.accepted for each in rounds) / tested, abs=4 / tested**0.5)
        reached[sharpness] = beta
    assert reached[0.0] == pytest.approx(1.0)  # flat p is the drafter's own distribution
    alpha = reached[30.0]
    assert 0 < alpha < 0.2
    assert optimal_gamma(alpha, alpha + 0.05, 8) == 0
    assert optimal_gamma(alpha, alpha - 0.05, 8) > 0
