"""Constrained replies: they follow their constraint, and otherwise are what the target says."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from torch import Tensor

from benchmarks.fuzz_schemas import ENDS, ask_all, random_schemas
from specchat.engine import (
    JSON_OBJECT,
    Constraint,
    ConstraintKind,
    Engine,
    EngineConfig,
    EngineError,
    FinishReason,
    Request,
    Sampling,
    check_constraint,
    one_of,
)
from tests.engine.drafters.models import packed_family, related
from tests.engine.sampled import check_distribution, says
from tests.engine.tiny import (
    EOS,
    assert_the_same_in_a_batch,
    ids_of,
    rounds_of,
    run_together,
    started,
    text_of,
    tiny_engine,
    tiny_head,
    tiny_model,
)

pytestmark = pytest.mark.usefixtures("one_thread")
SCHEMA, REGEX, GRAMMAR = ConstraintKind.SCHEMA, ConstraintKind.REGEX, ConstraintKind.GRAMMAR
Letters = tuple[str, ...]
DRAFTERS = ("suffix", "head", "combined", "model", "model-tree", "merged")


def schema(**properties: Any) -> Constraint:
    """A schema of an object with all of these properties."""
    form = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return Constraint(SCHEMA, json.dumps(form))


PERSON = schema(
    name={"type": "string", "maxLength": 12},
    age={"type": "integer", "minimum": 0, "maximum": 120},
    country_code={"enum": ["DE", "FR", "US"]},
    favourite_colours={"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1, "maxItems": 3},
)
CONSTRAINTS = {
    "schema": PERSON,
    "regex": Constraint(REGEX, r"\d{3}-\d{4} [a-f]+!"),
    "choices": one_of(['a "quoted" one', "another, é"]),
    "Lark": Constraint(GRAMMAR, 'start: "(" start ")" start | "."'),
    "GBNF": Constraint(GRAMMAR, 'root ::= "The answer is " ("yes" | "no") "."'),
    "left recursion": Constraint(GRAMMAR, 'start: start "a" | "b"'),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    target = tiny_model(sharpness=4.0)
    parts: dict[str, Any] = {
        "head": tiny_head(target),
        "draft": related(0.5, 40.0),
        "more": [related(0.4, 45.0, seed=9)],
    }
    with tiny_engine(target, slots=8, queue=4000, **parts) as running:
        yield running


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    model = packed_family("llama", tmp_path_factory.mktemp("packed"))
    with tiny_engine(model, slots=8, queue=4000) as running:  # type: ignore[arg-type]
        yield running


def ask(name: str, constraint: Constraint | None, drafter: str = "suffix", **options: Any) -> Request:
    options = {"max_tokens": 40} | options
    return Request(name, prompt_ids=(104, 105, 33) * 3, drafter=drafter, constraint=constraint, **options)


SAMPLINGS = [
    Sampling(),
    Sampling(temperature=1.0, seed=3, repetition_penalty=1.3, presence_penalty=0.5, dry_multiplier=0.8),
    Sampling(temperature=1.2, top_k=20, min_p=0.01, xtc_probability=0.5, xtc_threshold=0.05, seed=4),
]


@pytest.mark.daily(8)
@pytest.mark.parametrize("kind", ["tensors", "packed"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "penalties", "filters"])
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_replies_do_not_depend_on_drafts(name: str, sampling: Sampling, kind: str, request: Any) -> None:
    engine: Engine = request.getfixturevalue("engine" if kind == "tensors" else "packed")
    options = {"sampling": sampling, "gamma": 4}
    plain = list(engine.stream(ask("plain", CONSTRAINTS[name], "none", **options)))
    drafters = [each for each in DRAFTERS if each in engine.wait_ready().drafters]
    for drafter in drafters:
        assert ids_of(engine.stream(ask(drafter, CONSTRAINTS[name], drafter, **options))) == ids_of(plain)
    if name == "schema" and plain[-1].reason is FinishReason.EOS:
        jsonschema.validate(json.loads(text_of(plain)), json.loads(PERSON.text))


def test_certain_text_is_drafted_and_accepted(engine: Engine) -> None:
    rounds = rounds_of(engine.stream(ask("r", PERSON, "head", max_tokens=100, gamma=8)))
    drafts = [each for each in rounds if [named.name for named in each.proposers] == ["grammar"]]
    assert '"favourite_c' in "".join(each.text for each in drafts)
    assert all(each.accepted == len(each.drafted) > 0 for each in drafts)
    assert sum(each.accepted for each in drafts) > 40


def test_rows_with_and_without_constraints_share_a_batch(engine: Engine) -> None:
    rows = [*CONSTRAINTS.values(), None, JSON_OBJECT]
    kinds = [Sampling(), Sampling(temperature=1.0, seed=1)]
    requests = [
        ask(f"{i}", constraint, DRAFTERS[i % 6], sampling=kinds[i % 3 % 2], gamma=3, detail=2 * (i == 1))
        for i, constraint in enumerate(rows)
    ]
    assert_the_same_in_a_batch(engine, requests)


LETTERS = ("ah", "bm", "az"), ("ah", "qq", "bm"), ("ah", "bm", "qq")
"""First and last letter of each position."""


@pytest.mark.slow
@pytest.mark.parametrize("letters", LETTERS)
@pytest.mark.parametrize("drafter", ["none", *DRAFTERS])
def test_sampled_tokens_are_those_that_rejection_would_leave(engine: Engine, drafter: str, letters: Letters) -> None:
    """χ² after each beginning; drafts are drawn from q where the drafter draws them, and forced text follows them."""
    target_says = says(tiny_model(sharpness=4.0))
    options = {"gamma": 2, "max_tokens": 3, "sampling": Sampling(temperature=1.0)}
    prompt, constraint = (104, 105, 33) * 3, Constraint(REGEX, "".join(f"[{a}-{b}]" for a, b in letters))
    events = run_together(engine, [ask(f"{i}", constraint, drafter, **options) for i in range(2000)])
    ids = {letter: ord(letter) - 33 for letter in "abcdefghijklmnopqrstuvwxyz"}
    sets = [[ids[chr(each)] for each in range(ord(first), ord(last) + 1)] for first, last in letters]

    def p(tokens: list[int]) -> Tensor:
        known = torch.zeros_like(whole := target_says(tokens))
        allowed = sets[len(tokens) - len(prompt)]
        known[allowed] = whole[allowed]
        return known / known.sum()

    assert check_distribution(events, prompt, p) >= 2


BAD = {
    "no schema": (Constraint(SCHEMA, "[1"), "the JSON schema is not JSON (Expecting ',' delimiter: line 1 column 3"),
    "unsatisfiable": (Constraint(SCHEMA, '{"type": "string", "minLength": 3, "maxLength": 2}'), "Unsatisfiable schema"),
    "endless": (schema(child={"$ref": "#"}), "the JSON schema requires itself without end: make the part that recurs"),
    "endless reference": (Constraint(SCHEMA, '{"$ref": "#"}'), "no text satisfies it"),
    "remote": (
        Constraint(SCHEMA, '{"$ref": "https://example.com/schema.json"}'),
        "refers to https://example.com/schema.json, which is never fetched: put the definition under $defs",
    ),
    "unknown keyword": (
        Constraint(SCHEMA, '{"not": {"type": "null"}}'),
        'uses "not", which is not supported: remove it',
    ),
    "overlap": (Constraint(SCHEMA, '{"oneOf": [{"type": "string"}, {"type": "string"}]}'), "use anyOf"),
    "deep": (Constraint(SCHEMA, '{"items":' * 5000 + "{}" + "}" * 5000), "recursion"),
    "less deep": (Constraint(SCHEMA, '{"items":' * 700 + "{}" + "}" * 700), "is nested too deeply: put parts of it"),
    "deeper than llguidance reads": (Constraint(SCHEMA, '{"items":' * 150 + "{}" + "}" * 150), "recursion limit"),
    "no number": (Constraint(SCHEMA, '{"const": NaN}'), "is not JSON (NaN is no number of JSON): correct it"),
    "too large a number": (Constraint(SCHEMA, '{"maximum": 1e400}'), "is not JSON (1e400 is no number of JSON)"),
    "names that have to differ": (
        Constraint(SCHEMA, '{"type": "object", "required": ["a"], "minProperties": 3}'),
        "has minProperties above the number of required ones: list more names under required",
    ),
    "old draft": (
        Constraint(SCHEMA, '{"$schema": "http://json-schema.org/draft-03/schema#", "disallow": "string"}'),
        "is of draft 3 or older: write it in draft 4 or a later one",
    ),
    "no option": (Constraint(SCHEMA, '{"oneOf": [{"type": [{}]}, {"required": true}]}'), "type must be a string"),
    "no regex": (Constraint(REGEX, "(a"), "the regular expression cannot be used: unclosed group"),
    "look-ahead": (Constraint(REGEX, "(?=a)a"), "look-around, including look-ahead and look-behind, is not supported"),
    "matches nothing": (Constraint(REGEX, r"[^\s\S]"), "the regular expression cannot be used: no text satisfies it"),
    "no grammar": (Constraint(GRAMMAR, "start: foo"), 'unknown name: "foo"'),
    "no start": (Constraint(GRAMMAR, 'item: "a" item?'), "it has no rule `start` (in GBNF `root ::= …`)"),
    "remote in a grammar": (
        Constraint(GRAMMAR, 'start: %json {"$ref": "http://example.com/y"}'),
        "the grammar refers to http://example.com/y, which is never fetched",
    ),
    "no rule": (Constraint(GRAMMAR, "root ::= foo"), "the grammar cannot be used"),
    "endless grammar": (Constraint(GRAMMAR, 'start: "a" start'), "no finite text follows it"),
    "endless GBNF": (Constraint(GRAMMAR, 'root ::= "b" x\nx ::= "a" x'), "no finite text follows it"),
    "endless choice": (Constraint(GRAMMAR, 'start: "a" start | /b+/ start'), "no finite text follows it"),
    "endless GBNF choice": (Constraint(GRAMMAR, 'root ::= x\nx ::= "a" y\ny ::= [0-9] x | y "b"'), "no finite text"),
    "only itself": (Constraint(GRAMMAR, "start: start"), "no text satisfies it"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_constraint_is_refused_in_a_sentence(engine: Engine, name: str) -> None:
    constraint, told = BAD[name]
    with pytest.raises(EngineError) as refused:
        engine.submit(ask("bad", constraint))
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300
    assert refused.value.field == "constraint"


ENDING = {
    "excluded word": 'start: WORD ("," WORD)*\nWORD: /[a-z]+/ & ~"no"\n',
    "options": 'start: x "."\nx[max_tokens=3]: /.*/',
    "import": "start: WORD\n%import common.WORD",
    "schema": 'start: "a" start | %json {"type": "null"}',
    "marks in literals": 'start: "[" start | "%" start | "//" start | /[%"#]/ // "x" start\n',
    "GBNF": 'root ::= "a" root | [^"/]* "\\"" #',
}


@pytest.mark.parametrize("name", ENDING)
def test_a_grammar_with_an_end_is_taken(name: str) -> None:
    check_constraint(Constraint(GRAMMAR, ENDING[name]))


@pytest.mark.parametrize("text", ["", " \n", "x" * 1_000_000])
def test_a_constraint_has_a_text_of_some_length(text: str) -> None:
    with pytest.raises(EngineError, match=r"^the grammar (is empty|has 1000000 characters)"):
        Constraint(GRAMMAR, text)
    with pytest.raises(EngineError, match=r"^a choice is empty"):
        one_of(["a", ""])


def test_a_given_beginning_has_to_follow_the_constraint(engine: Engine) -> None:
    events = list(engine.stream(ask("r", CONSTRAINTS["GBNF"], reply_text="The answer is y", max_tokens=10)))
    assert text_of(events) == "es."
    (refused,) = engine.stream(ask("r", CONSTRAINTS["GBNF"], reply_text="No"))
    assert refused.message == "the beginning of the reply does not follow the grammar"


def test_a_limit_keeps_the_text(engine: Engine) -> None:
    events = list(engine.stream(ask("r", PERSON, max_tokens=9)))
    assert text_of(events) == '{"name": '
    assert events[-1].reason is FinishReason.LENGTH


@pytest.mark.parametrize("drafter", ["none", "suffix"])
def test_a_constraint_that_takes_too_much_work_ends_the_reply(engine: Engine, drafter: str) -> None:
    options: dict[str, Any] = {"max_tokens": 150, "sampling": Sampling(logit_bias=((EOS, -100.0),))}
    hard = [Constraint(REGEX, f"[A-H]{{{count}}} ([a-z]{{1,1000}}){{1,1000}}") for count in (8, 9)]
    other, *failed = run_together(
        engine,
        [
            ask("other", PERSON, drafter, max_tokens=150),
            *(ask(f"{i}", each, drafter, **options) for i, each in enumerate(hard)),
        ],
    )
    for events in failed:
        assert events[-1].reason is FinishReason.ERROR
        assert events[-1].message.startswith("the regular expression takes too much work: shorten it")
        assert re.match("[A-H]{8,9} [a-z]", text_of(events))
    assert other[-1].reason is not FinishReason.ERROR
    assert text_of(list(engine.stream(ask("next", CONSTRAINTS["GBNF"], drafter)))).startswith("The answer is ")


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.usefixtures("kernels")
def test_replies_to_random_schemas_validate(default_model: Path) -> None:
    with started(EngineConfig("smollm2-135m", default_model.parent, context=512, slots=4)) as engine:
        outcomes = [*ask_all(engine, random_schemas(seed=1, count=200), batch=4, max_tokens=96)]
    assert [each for each in outcomes if each.ended not in ENDS] == []
    assert sum(each.ended == FinishReason.EOS for each in outcomes) > 100
