"""Drafters along texts: the very rounds that generation had; for sampled texts, what was to be expected of it."""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from specchat.engine import (
    Constraint,
    ConstraintKind,
    EngineConfig,
    EngineError,
    Message,
    Record,
    Request,
    Round,
    Sampling,
    Tool,
    TraceWriter,
)
from specchat.engine.stats.metrics import Metrics
from specchat.engine.tools.evaluate import EvaluateOptions, evaluate
from specchat.engine.tools.evaluate.drafters import Evaluation, Figures
from specchat.engine.tools.evaluate.rounds import Course, Way, expected_lengths, expected_starts
from specchat.engine.tools.runner import running

GAMMA = 3
TOOLS = (
    "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    '{% for c in m.tool_calls or [] %}<tool_call>{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{% endfor %}[assistant]"
)
"""A template with tools, in the format of Hermes."""
PROMPTS = ("the quick brown fox", "the dog barks at the fox at the dog", "0123 0123 01")
DRAFTERS = ("model", "model-tree", "hierarchical", "suffix")
WIDE = {"max_position_embeddings": 512, "eos_token_id": 3}


@dataclass(frozen=True)
class Generated:
    """Replies of a tiny target: a trace of each by the first drafter, and the rounds of every drafter."""

    target: Path
    draft: Path
    files: tuple[Path, ...]
    rounds: dict[str, list[Round]]

    def evaluate(self, **options: Any) -> Evaluation:
        given = {"files": self.files, "gammas": (GAMMA,), "draft": str(self.draft), "dtype": "float32"} | options
        return evaluate(EvaluateOptions(models=self.draft.parent, target=str(self.target), **given), lambda _line: None)


def generate(
    target: Path,
    draft: Path,
    drafters: Sequence[str],
    prompts: Sequence[tuple[str, Sampling]],
    most: int = 60,
    **asked: Any,
) -> Generated:
    files = tuple(draft / f"text{number}.jsonl" for number in range(len(prompts)))
    made = Generated(target, draft, files, {drafter: [] for drafter in drafters})
    config = EngineConfig(str(target), draft.parent, draft=str(draft), dtype="float32", context=256)
    with running(config) as (engine, *_):
        for drafter in drafters:
            for file, (prompt, sampling) in zip(files, prompts, strict=True):
                messages = (Message("user", prompt),)
                name = f"{drafter} {file.stem}"
                given = {"drafter": drafter, "gamma": GAMMA, "max_tokens": most, "sampling": sampling}
                request = Request(name, messages, **given, **asked)
                events = list(engine.stream(request))
                made.rounds[drafter].extend(event for event in events if isinstance(event, Round))
                if drafter == drafters[0]:
                    write(file, request, *events)
    return made


def write(file: Path, *records: Record) -> None:
    with TraceWriter(file) as writer:
        for record in records:
            writer.write(record)


@pytest.fixture(scope="module")
def pair(tiny_model: Callable[..., Path]) -> Generated:
    draft = tiny_model(seed=0, **WIDE, num_hidden_layers=1)
    return generate(tiny_model(**WIDE), draft, DRAFTERS, [(prompt, Sampling()) for prompt in PROMPTS])


@pytest.fixture(scope="module")
def found(pair: Generated) -> Evaluation:
    return pair.evaluate(drafters=DRAFTERS)


def assert_same_rounds(generated: Generated, found: Evaluation, drafter: str) -> None:
    courses, rounds = found.courses[Way(drafter, GAMMA)], generated.rounds[drafter]
    assert sum(course.rounds for course in courses) == len(rounds)
    assert sum(course.emitted for course in courses) == sum(len(each.emitted) for each in rounds) == found.tokens
    assert sum(course.tested.total() for course in courses) == sum(each.tested for each in rounds) > 0
    assert sum(sum(course.accepted.values()) for course in courses) == sum(each.accepted for each in rounds)
    lengths = sum((course.lengths for course in courses), Counter[int]())
    assert lengths == Counter(each.steps for each in rounds)
    assert sum(course.timed_steps for course in courses) == sum(each.steps for each in rounds if each.number)


@pytest.mark.slow
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_rounds_are_those_of_generation(pair: Generated, found: Evaluation, drafter: str) -> None:
    assert_same_rounds(pair, found, drafter)
    assert any(each.accepted for each in pair.rounds[drafter])


def test_rounds_of_the_shipped_head_are_those_of_generation(default_model: Path, tmp_path: Path) -> None:
    """Its trees grow in the pass of a target on the kernels; an evaluation has no such pass."""
    config, file = EngineConfig(default_model.name, default_model.parent, context=256), tmp_path / "text.jsonl"
    request = Request("r", (Message("user", "Name three rivers."),), drafter="head", gamma=GAMMA, max_tokens=40)
    with running(config) as (engine, *_):
        events = list(engine.stream(request))
    write(file, request, *events)
    rounds = {"head": [event for event in events if isinstance(event, Round)]}
    options = EvaluateOptions(
        models=default_model.parent, target=default_model.name, files=(file,), drafters=("head",), gammas=(GAMMA,)
    )
    generated = Generated(default_model, default_model, (file,), rounds)
    assert_same_rounds(generated, evaluate(options, lambda _line: None), "head")


PLACE = {"type": "object", "properties": {"place_name": {"enum": ["Oslo", "Bergen"]}}, "required": ["place_name"]}
FOLLOWED = {
    "schema": {"constraint": Constraint(ConstraintKind.SCHEMA, json.dumps(PLACE | {"additionalProperties": False}))},
    "call": {"tools": (Tool("weather", "", json.dumps(PLACE)),), "tool_choice": "weather"},
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_constrained_rounds_are_those_of_generation(name: str, tiny_model: Callable[..., Path]) -> None:
    target = tiny_model(**WIDE, chat_template=TOOLS)
    generated = generate(target, target, ["suffix"], [(PROMPTS[1], Sampling())], most=120, **FOLLOWED[name])
    found = generated.evaluate(drafters=("suffix",), draft=None)
    assert_same_rounds(generated, found, "suffix")
    metrics = Metrics()
    for record in generated.rounds["suffix"]:
        metrics.add(record)
    tested, accepted = metrics.by_draft["grammar"]
    assert (tested, accepted) == found.figures()[0].by_draft["grammar"]
    assert f"grammar {accepted}/{tested}" in found.text()
    sampled = generated.evaluate(drafters=("suffix",), draft=None, temperature=1.0).figures()[0]
    assert sampled.by_draft["grammar"][1] > 0.9 * sampled.by_draft["grammar"][0]


def test_replies_of_a_data_set_are_evaluated_with_their_schema(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    target, file = tiny_model(**WIDE), tmp_path / "talks.jsonl"
    schema = {"name": "place", "schema": PLACE | {"additionalProperties": False}}
    row = {"response_format": {"type": "json_schema", "json_schema": schema}}
    replies = '{\n  "place_name": "Oslo"\n}', '{"place_name": "Rome"}'
    rows = [
        row | {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": each}]}
        for each in replies
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    found = Generated(target, target, (file,), {}).evaluate(drafters=("suffix",), draft=None)
    assert found.tokens == len('{"place_name": "Oslo"}')
    assert found.figures()[0].by_draft["grammar"][1] > 10
    assert found.problems == ["talks.jsonl, line 2: the beginning of the reply does not follow the JSON schema"]


@pytest.mark.slow
def test_figures_intervals_and_reports_agree(found: Evaluation) -> None:
    assert found.agreed == found.tokens, "the text is the target's own"
    for each in found.figures():
        assert each.tau_interval.low <= each.tau <= each.tau_interval.high
        assert each.alpha == each.accepted / each.tested
        assert 1 <= each.tau <= GAMMA + 1
        assert len(each.by_position) <= GAMMA
    assert {each.category for each in found.figures()} == {"", "text0", "text1", "text2"}
    text, whole, table = found.text(), json.loads(found.json()), list(csv.DictReader(io.StringIO(found.csv())))
    assert "100 % of them are its own greedy choice" in text
    first = whole["figures"][0]
    assert (first["drafter"], table[0]["drafter"]) == ("model", "model")
    assert f"{first['tau']:.2f} (" in text
    assert float(table[0]["tau"]) == first["tau"]
    only = {(p["has"]["drafter"], p["has_not"]["drafter"]): sum(map(len, p["places"])) for p in whole["only_one"]}
    assert f"model γ 3 has, suffix γ 3 has not: {only['model', 'suffix']} token" in text
    drafted = {way.drafter: sum(map(sum, (c.predicted for c in courses))) for way, courses in found.courses.items()}
    assert only["model", "suffix"] - only["suffix", "model"] == drafted["model"] - drafted["suffix"]


@pytest.fixture(scope="module")
def short(tiny_model: Callable[..., Path]) -> Generated:
    target = tiny_model(**WIDE)
    return generate(target, target, ["suffix"], [(prompt, Sampling()) for prompt in PROMPTS], 12)


def test_texts_are_cut_and_counted_as_asked(short: Generated) -> None:
    found = short.evaluate(limit=2, max_tokens=10, drafters=("suffix",), gammas=(2, 5), draft=None)
    assert found.tokens == 20
    assert list(found.courses) == [Way("suffix", 2), Way("suffix", 5)]


def test_one_text_has_no_interval(short: Generated) -> None:
    table = [short.evaluate(limit=count, max_tokens=10, drafters=("suffix",), draft=None).text() for count in (1, 2)]
    assert [text.count(" (–)") for text in table] == [2, 4]  # of two, each category has one


def test_bad_input_is_one_sentence(short: Generated, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"drafters": ("magic",)}, "drafter 'magic' is not available: choose one of model, model-tree, "),
        ({"gammas": (0,)}, "gamma is 0: it must be at least 1"),
        ({"temperature": -1}, "temperature is -1: it must be "),
        ({"files": (bad,)}, r"there is no text to evaluate on; bad\.jsonl: it has no conversation"),
    )
    for options, sentence in refused:
        with pytest.raises(EngineError, match=sentence):
            short.evaluate(**options)


@pytest.fixture(scope="module")
def sampled(tiny_model: Callable[..., Path]) -> Generated:
    draft = tiny_model(eos_token_id=3, num_hidden_layers=1)
    prompts = [("the fox", Sampling(temperature=1.0))] * 12
    return generate(tiny_model(eos_token_id=3), draft, ["model"], prompts, 80)


@pytest.fixture(scope="module")
def expected(sampled: Generated) -> Evaluation:
    return sampled.evaluate(drafters=("model",), temperature=1.0)


@pytest.mark.slow
def test_alpha_of_a_model_is_the_overlap_of_both_networks(sampled: Generated, expected: Evaluation) -> None:
    from transformers import AutoModelForCausalLM

    networks = [AutoModelForCausalLM.from_pretrained(folder) for folder in (sampled.target, sampled.draft)]
    for text, course in zip(expected.texts, expected.courses[Way("model", GAMMA)], strict=True):
        ids = torch.tensor([[*text.prompt, *text.reply]])
        with torch.inference_mode():
            p, q = (network(ids).logits[0, len(text.prompt) - 1 : -1].softmax(-1) for network in networks)
        assert course.accepted[0] == pytest.approx(torch.minimum(p, q).sum().item(), rel=1e-3)


def test_rounds_are_counted_by_their_chances() -> None:
    assert sum(expected_starts([1.0] * 8, 3)) == 2.0
    assert sum(expected_starts([0.0] * 8, 3)) == 8.0
    assert sum(expected_starts([0.5], 3)) == 1.0
    assert expected_lengths([1.0, 0.5, 1.0, 1.0], [True, True, False, True], 3) == {2: 1.0, 1: 0.5, 0: 1.0, 3: 1.0}
    alpha, gamma = 0.7, 4
    tau = (1 - alpha ** (gamma + 1)) / (1 - alpha)
    assert 20_000 / sum(expected_starts([alpha] * 20_000, gamma)) == pytest.approx(tau, rel=1e-3)


def test_rounding_makes_no_acceptance_rate_of_more_than_one() -> None:
    tested, lengths = Counter({0: 3}), Counter({3: 1})
    course = Course("sure", rounds=1, emitted=4, tested=tested, accepted={0: 3.0000003}, lengths=lengths)
    figures = Figures.of("model", 3, "", [course])
    assert (figures.alpha, figures.predicted_speedup) == (1.0, 4.0)
