"""Plain passes between rounds with drafts are few and change nothing; a reply that need not repeat is said to."""

import pytest
import torch

from specchat.engine import Round, Sampling
from tests.engine.tiny import ask, ids_of, notices_of, rounds_of, run_together, tiny_engine, tiny_model

SAMPLED = Sampling(temperature=1.0, seed=3)


def test_the_plain_pass_is_measured_while_warming_up_and_beside_rounds_that_draft() -> None:
    """A draft model drafts in every round: without these passes nothing would be known of plain ones."""
    with tiny_engine(draft=tiny_model(1, layers=1)) as engine:
        assert len(engine.ready.plain_s) >= 3
        assert min(engine.ready.plain_s) > 0
        rounds = rounds_of(engine.stream(ask("abcabc", max_tokens=200, gamma=2)))
        timed = [r for r in rounds if r.plain_s]
        assert all(r.drafted for r in rounds[:-1])
        assert len(timed) >= 2
        assert not rounds[0].plain_s
        assert len(timed) < len(rounds) / 3


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
def test_a_plain_pass_changes_no_token(sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies with a plain pass before every round, alone and in a batch, are the replies without any."""
    requests = [ask(text, text, max_tokens=24, gamma=3, sampling=sampling) for text in ("abcabc", "hello", "x")]
    texts = {}
    for name in ("rare", "always", "never"):
        if name == "always":
            monkeypatch.setattr("specchat.engine.worker.rounds.PRICE", 0)
            monkeypatch.setattr("specchat.engine.worker.rounds.EARLY_PRICE", 0)
        elif name == "never":
            monkeypatch.setattr("specchat.engine.worker.rounds.PlainPasses.due", lambda *_: False)
        with tiny_engine(draft=tiny_model(1, layers=1)) as engine:
            together = run_together(engine, requests)
        timed = sum(isinstance(e, Round) and e.plain_s > 0 for events in together for e in events)
        assert (timed > 10) >= (name == "always")
        assert (timed == 0) >= (name == "never")
        texts[name] = [ids_of(events) for events in together]
    assert texts["always"] == texts["rare"] == texts["never"]


def told(dtype: torch.dtype, **options: object) -> list[str]:
    target = tiny_model()
    target.model.to(dtype)
    with tiny_engine(target) as engine:
        for number in range(2):
            list(engine.stream(ask("abcabc", f"{number}", max_tokens=4, **options)))
        return notices_of(engine.drain())


def test_an_adaptive_gamma_in_bfloat16_is_told_of_once() -> None:
    (text,) = told(torch.bfloat16)
    assert text.startswith("in bfloat16 a greedy reply may differ from run to run")


def test_what_repeats_is_not() -> None:
    assert told(torch.float32) == []
    assert told(torch.bfloat16, gamma=4) == []
    assert told(torch.bfloat16, sampling=Sampling(temperature=1.0)) == []
