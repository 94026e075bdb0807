"""A draft model that the text drafts for: its own draft token for token, exact output, fewer passes."""

import pytest
import torch

from specchat.engine import Request, Round, Sampling
from specchat.engine.backends.transformers_backend import TransformersBackend
from tests.engine.chi_square import z_score
from tests.engine.drafters.models import related
from tests.engine.tiny import ask, ids_of, run_together, tiny_engine, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ("abcabcabcabc", "hello", "0123456789" * 6, "x")


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(repetition_penalty=1.1, logit_bias=((101, 3.0),))], ids=["plain", "penalised"]
)
def test_its_greedy_draft_is_the_draft_models_own(sampling: Sampling) -> None:
    with tiny_engine(tiny_model(sharpness=25.0), draft=related()) as engine:
        for text in TEXTS[:3]:
            plain = ids_of(list(engine.stream(ask(text, drafter="none", max_tokens=30, sampling=sampling))))
            by_drafter = []
            for drafter in ("model", "hierarchical"):
                request = ask(text, drafter=drafter, gamma=5, max_tokens=30, sampling=sampling)
                events = list(engine.stream(request))
                assert ids_of(events) == plain
                by_drafter.append([(e.drafted, e.accepted) for e in events if isinstance(e, Round)])
            assert by_drafter[0] == by_drafter[1]


def test_where_the_text_repeats_the_draft_model_makes_fewer_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    draft, passes = related(noise=0.0), 0
    forward = TransformersBackend._forward

    def counted(self: TransformersBackend, *args: object) -> object:
        nonlocal passes
        passes += self.model is draft.model
        return forward(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(TransformersBackend, "_forward", counted)
    with tiny_engine(tiny_model(sharpness=25.0), draft=draft) as engine:
        counts = {}
        for drafter in ("model", "hierarchical"):
            passes = 0
            events = list(engine.stream(ask("hello", drafter=drafter, gamma=6, max_tokens=150)))
            counts[drafter] = passes / sum(len(e.drafted) for e in events if isinstance(e, Round))
    assert counts["model"] >= 1
    assert counts["hierarchical"] < 0.7, "a greedy text comes to a cycle"


@torch.inference_mode()
def test_a_sampled_draft_has_the_draft_models_distribution() -> None:
    """χ² of the drafted tokens themselves, against the draft model, which likes what the text proposes."""
    draft, plain = related(0.3, 12.0), related(0.3, 12.0)
    prompt = (104, 105, 33, 104, 105, 33, 104, 105)
    proposed, bias = 33, 6.5
    logits = plain.model(torch.tensor([prompt])).logits[0, -1]
    logits[proposed] += bias
    p = logits.softmax(-1)
    assert 0.1 < p[proposed] < 0.9
    with tiny_engine(tiny_model(sharpness=20.0), draft=draft, slots=16, queue=1500) as engine:
        requests = [
            Request(
                f"r{i}", prompt_ids=prompt, drafter="hierarchical", gamma=2, max_tokens=3,
                sampling=Sampling(temperature=1.0, seed=i, logit_bias=((proposed, bias),)),
            )
            for i in range(600)
        ]  # fmt: skip
        events = run_together(engine, requests)
    first = torch.tensor([next(e.drafted[0] for e in each if isinstance(e, Round)) for each in events])
    assert abs(z_score(first, p)) < 4
