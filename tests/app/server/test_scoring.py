"""Log-probabilities of prompts, as evaluation harnesses ask `/v1/completions` for them."""

import json
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from specchat.engine import Round, from_json
from tests.app.server.served import Served

HARNESS = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
"""What lm-evaluation-harness sends with the prompts and the model's name (`local-completions`)."""
PROMPTS = [[66, 67, 68, 100, 32, 66, 67], [70], [90 + n % 7 for n in range(100)], [300, 5, 319, 7, 7]]


def harness_scores(reply: dict[str, Any], contexts: list[int]) -> list[tuple[float, bool]]:
    """Sum of the log-probabilities after each context, and whether these tokens are the likeliest, as it reads them."""
    found = []
    for choice, context in zip(sorted(reply["choices"], key=itemgetter("index")), contexts, strict=True):
        own, top = (choice["logprobs"][name][context:-1] for name in ("token_logprobs", "top_logprobs"))
        found.append((sum(own), all(each == max(others.values()) for each, others in zip(own, top, strict=True))))
    return found


def reference(model: Path, prompt: list[int]) -> torch.Tensor:
    """Log-probabilities [n - 1, V] of the tokens after the first one, by transformers alone."""
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.inference_mode():
        return network(torch.tensor([prompt])).logits[0, :-1].float().log_softmax(-1)


def test_a_harness_gets_the_log_probabilities_of_transformers(served: Served, model: Path) -> None:
    with served.http() as http:
        reply = http.post("/v1/completions", json={"prompt": PROMPTS, **HARNESS}).raise_for_status().json()
        again = http.post("/v1/completions", json={"prompt": PROMPTS, **HARNESS}).raise_for_status().json()
        assert again["choices"] == reply["choices"]  # a known prefix hides no position
        bare = http.post("/v1/completions", json={"prompt": PROMPTS, **HARNESS, "max_tokens": 0}).json()
    for prompt, choice, alone in zip(PROMPTS, reply["choices"], bare["choices"], strict=True):
        lists, unwritten = choice["logprobs"], alone["logprobs"]
        assert {len(each) for each in lists.values()} == {len(prompt) + 1}
        assert unwritten == {name: each[:-1] for name, each in lists.items()}
        assert (lists["token_logprobs"][0], lists["top_logprobs"][0]) == (None, None)
        assert choice["text"] == "".join(lists["tokens"])
        assert lists["text_offset"] == [len("".join(lists["tokens"][:n])) for n in range(len(prompt) + 1)]
        if len(prompt) > 1:
            expected = reference(model, prompt)
            own = expected.gather(-1, torch.tensor(prompt[1:])[:, None])[:, 0]
            assert lists["token_logprobs"][1:-1] == pytest.approx(own.tolist(), abs=1e-4)
            best = [max(each.values()) for each in lists["top_logprobs"][1:-1]]
            assert best == pytest.approx(expected.amax(-1).tolist(), abs=1e-4)
    assert (bare["usage"]["prompt_tokens"], bare["usage"]["completion_tokens"]) == (sum(map(len, PROMPTS)), 0)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"best_of": 3}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"prompt": [[5, 1 << 20]]}, None),
        ({"echo": 1}, "echo"),
    ],
)
def test_what_would_change_something_is_refused(served: Served, more: dict[str, Any], param: str | None) -> None:
    with served.http() as http:
        reply = http.post("/v1/completions", json={"prompt": "x", **HARNESS, "n": 2, **more})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
        assert http.post("/v1/completions", json={"prompt": "x", **HARNESS, "n": 2, "best_of": 2}).status_code == 200
        tool = {"type": "function", "function": {"name": "add"}}
        tools = {"tools": [tool], "functions": [{}], "tool_choice": "none", "function_call": "none"}
        asked = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        assert http.post("/v1/chat/completions", json={**asked, **tools}).status_code == 200
        assert http.post("/v1/chat/completions", json={**asked, **tools, "tool_choice": "auto"}).status_code == 400


@pytest.mark.slow
def test_the_packed_default_model_scores_its_own_reply_as_it_drew_it(default_model: Path, tmp_path: Path) -> None:
    with Served("--target", default_model, "--context", 512, home=tmp_path) as server, server.http() as http:
        ids = http.post("/tokenize", json={"prompt": "The three primary colours are"}).json()["tokens"]
        asked = {"max_tokens": 40, "logprobs": 1, "temperature": 1, "seed": 3, "speculation": True, "stop": None}
        (choice,) = http.post("/v1/completions", json={"prompt": [ids], **asked}).json()["choices"]
        drawn = choice["logprobs"]["token_logprobs"]
        records = [from_json(json.dumps(each)) for each in choice["speculation"]]
        reply = [token for each in records if isinstance(each, Round) for token in each.emitted][: len(drawn)]
        http.post("/v1/completions", json={"prompt": [ids + reply], "max_tokens": 1}).raise_for_status()  # now cached
        scored = http.post("/v1/completions", json={"prompt": [ids + reply], **HARNESS}).json()
    (total, _), *_ = harness_scores(scored, [len(ids)])
    assert total == pytest.approx(sum(drawn), abs=1e-3)
    assert scored["choices"][0]["logprobs"]["token_logprobs"][len(ids) : -1] == pytest.approx(drawn, abs=1e-4)
