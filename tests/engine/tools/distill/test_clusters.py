"""Clusters of a head's vocabulary: balanced, of tokens that are alike, and found by the matrix that scores them."""

from pathlib import Path

import pytest
import torch

from specchat.engine.drafters.head.folder import HeadAcceptance, read_head
from specchat.engine.tools.distill import Distilled, eagle
from specchat.engine.tools.distill.eagle import Eagle
from specchat.engine.tools.distill.text import Conversation
from tests.engine.tiny import tiny_model


def test_a_head_is_saved_with_clusters_and_trained_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eagle, "FEWEST", 4)
    torch.manual_seed(0)
    model = tiny_model()
    draft = Eagle(model)
    draft.begin(torch.arange(3, 195))
    width = len(draft.taps) * draft.hidden
    talks = [
        Conversation(torch.randint(200, (n,)).int(), torch.rand(n) < 0.7, torch.randn(n, width), torch.ones(n))
        for n in (2, 40, 60)
    ]
    draft.finish(talks)
    reached = dict.fromkeys(("greedy", "temperature 1"), HeadAcceptance(0.5, (0.5,), 1.5))
    draft.save(tmp_path / "head", Distilled(draft.noun, "tiny", 10, 20, 3.0, reached=reached))
    card, head, vocabulary = read_head(tmp_path / "head", model)
    assert card.shape.clusters == 6
    assert head.clusters is not None
    assert vocabulary.sort().values.equal(torch.arange(3, 195))
    torch.testing.assert_close(draft.scores, model.model.get_output_embeddings().weight[vocabulary])
    again = Eagle(model)
    again.begin(vocabulary)
    again.network.load_state_dict(again.start(tmp_path / "head").weights)
