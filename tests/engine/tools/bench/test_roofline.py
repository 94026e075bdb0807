"""What passes read, and the copy they are compared with."""

from __future__ import annotations

from pathlib import Path

from specchat.engine import EngineConfig
from specchat.engine.tools.bench.roofline import Traffic, weights_read
from specchat.engine.worker.assembly import put_together
from tests.engine.tiny import tiny_model


def test_an_embedding_that_is_not_the_head_is_not_read() -> None:
    model = tiny_model()
    table = model.model.get_input_embeddings().weight
    assert weights_read(model) == model.weight_bytes - table.nbytes
    model.model.lm_head.weight = table
    assert weights_read(model) == model.weight_bytes


def test_traffic_of_a_pair() -> None:
    target, draft = tiny_model(layers=2), tiny_model(layers=1)
    made = put_together(EngineConfig("t", Path(), slots=2, context=64), target, draft)
    traffic = Traffic.of(made)
    per_layer = 2 * 2 * 8 * 4  # keys and values, two heads of eight numbers of four bytes
    assert (traffic.cache, traffic.draft_cache) == (2 * per_layer, per_layer)
    assert traffic.draft_weights < traffic.weights
    assert Traffic.of(put_together(EngineConfig("t", Path(), slots=2, context=64), tiny_model(), None)).draft_cache == 0
