"""Scores of a text are log-probabilities of its tokens, on every kind of backend and whatever the cache knows."""

from pathlib import Path

import pytest
import torch

from specchat.engine import Request
from specchat.engine.worker.assembly import assemble_loaded
from tests.engine.drafters.models import packed_family
from tests.engine.hybrids import hybrid
from tests.engine.tiny import VOCABULARY, ids_of, rounds_of, tiny_engine, tiny_model

TEXT = [3 + n * n % (VOCABULARY - 8) for n in range(90)]


@pytest.mark.parametrize("kind", ["llama", "lfm2", "qwen3_5_text"])
def test_scores_are_those_of_one_pass_of_transformers(kind: str) -> None:
    target = tiny_model() if kind == "llama" else hybrid(kind)
    with torch.inference_mode():
        expected = target.model(torch.tensor([TEXT]), use_cache=False).logits[0, :-1].float().log_softmax(-1)
    with tiny_engine(target) as engine:
        list(engine.stream(Request("r", prompt_ids=tuple(TEXT), max_tokens=4)))  # the cache knows the text
        scores = engine.score_prompt(TEXT, 3).result(60)
        assert engine.score_prompt(TEXT[:1], 3).result(60) == []
    own = expected.gather(-1, torch.tensor(TEXT[1:])[:, None])[:, 0]
    assert [score.logprob for score in scores] == pytest.approx(own.tolist(), abs=2e-3)
    for score, row in zip(scores, expected, strict=True):
        assert [logprob for _, logprob in score.top] == pytest.approx(row.topk(3).values.tolist(), abs=2e-3)
        assert (score.logprob == score.top[0][1]) == (score.logprob >= score.top[0][1])


@pytest.mark.parametrize("family", ["llama", "lfm2", "qwen3.5"])
def test_packed_kernels_score_a_reply_as_they_drew_it(family: str, tmp_path: Path) -> None:
    model = packed_family(family, tmp_path)
    with tiny_engine(assemble=lambda config, _: assemble_loaded(config, model)) as engine:
        events = list(engine.stream(Request("r", prompt_ids=tuple(TEXT), max_tokens=40, detail=1, drafter="none")))
        reply = ids_of(events)
        scores = engine.score_prompt([*TEXT, *reply], 1).result(60)[len(TEXT) - 1 :]
    drawn = [each.probability for record in rounds_of(events) for each in record.detail]
    assert [score.logprob for score in scores] == pytest.approx(torch.tensor(drawn).log().tolist(), abs=1e-4)
