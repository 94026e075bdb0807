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
from specchat.engine.tools.distill.tables import TokenCounter
from specchat.engine.worker.assembly import Assembly, put_together
from tests.engine.tiny import VOCABULARY, ask, tiny_engine, tiny_model

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
