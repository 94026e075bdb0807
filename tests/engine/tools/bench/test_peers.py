"""The peers on tiny models: that they run, what they count, and why one cannot take part."""

from __future__ import annotations

import pytest
import torch

from specchat.engine import EngineError
from specchat.engine.tools.bench.prompts import Prompt
from specchat.engine.tools.bench.transformers_peer import TransformersPeer, _Clock
from tests.engine.tiny import tiny_model

PROMPTS = (Prompt("Hello"), Prompt("A longer question than that"))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_plain_generation_in_a_batch_of_unequal_prompts(temperature: float) -> None:
    peer = TransformersPeer(tiny_model())
    assert (peer.name, peer.gamma, peer.refusal(8)) == ("transformers", 0, None)
    pace = peer.run(PROMPTS, 2, temperature, 12)
    assert 0 < pace.tokens <= 22
    assert pace.seconds > 0


def test_drafting_peers_take_one_request_at_a_time() -> None:
    lookup, assisted = (
        TransformersPeer(tiny_model(), 3),
        TransformersPeer(tiny_model(), 3, tiny_model(seed=1, layers=1)),
    )
    assert (lookup.name, assisted.name) == ("transformers prompt lookup", "transformers assisted")
    for peer in (lookup, assisted):
        assert "batch of 1 only" in str(peer.refusal(2))
        assert peer.refusal(1) is None
        assert 0 < peer.run(PROMPTS, 1, 0.0, 12).tokens <= 24


def test_a_peer_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny_model()

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(loaded.model, "generate", fail)
    with pytest.raises(EngineError, match="transformers failed: no"):
        TransformersPeer(loaded).run(PROMPTS, 1, 0.0, 4)


def test_the_clock_leaves_out_prefill_and_what_follows_the_first_end() -> None:
    clock = _Clock({9})
    for value in ([[1, 2, 3]], [4, 5], [6, 7], [9, 8], [9, 8]):
        clock.put(torch.tensor(value))
    clock.end()
    assert clock.pace().tokens == 4
    assert _Clock({9}).pace().tokens == 0
