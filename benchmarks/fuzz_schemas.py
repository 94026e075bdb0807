"""Random JSON schemas: every finished reply of a model at temperature 1 validates, and no reply hangs.

Run from the repository: python -m benchmarks.fuzz_schemas --count 10000
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jsonschema

from specchat.engine import Constraint, ConstraintKind, Engine, EngineConfig, EngineError, FinishReason, Sampling
from specchat.engine.events import Finished
from specchat.engine.round import Round
from specchat.engine.sequence.grammar import check_constraint
from specchat.engine.tools.prompts import Prompt
from specchat.engine.tools.runner import Variant, run_pass, running

_WORDS = ("name", "id", "größe", "a b", "x", "user_name", "créé", "日付", "created_at", 'quo"te', "is-ok")
_LONGEST = 96
"""Tokens of a reply."""


def random_schema(draw: random.Random, depth: int = 3) -> dict[str, Any]:
    """A schema of up to this depth."""
    kinds = ("string", "integer", "number", "boolean", "null", "enum", "const")
    kind = draw.choice((*kinds, *(("object", "array", "anyOf", "tuple", "pattern") if depth else ("pattern",))))
    match kind:
        case "string":
            least = draw.randrange(3)
            return draw.choice(({"type": "string"}, {"type": "string", "minLength": least, "maxLength": least + 6}))
        case "integer" | "number":
            least = draw.randrange(-20, 20)
            limits = {"minimum": least, "maximum": least + draw.randrange(1, 40)}
            return {"type": kind, **draw.choice(({}, limits, {"exclusiveMinimum": least}))}
        case "enum":
            return {"enum": draw.sample(["a", "b c", "ü", 1, 2.5, None, True, {"k": [1]}], draw.randrange(1, 5))}
        case "const":
            return {"const": draw.choice(["fixed", 7, {"a": "b"}, ["x", 1], False])}
        case "pattern":
            return {"type": "string", "pattern": draw.choice(("^[a-c]{2,4}$", "^\\d{3}-\\d{2}$", "^(on|off)$"))}
        case "array":
            least = draw.randrange(3)
            items = random_schema(draw, depth - 1)
            return {"type": "array", "items": items, "minItems": least, "maxItems": least + draw.randrange(3)}
        case "tuple":
            parts = [random_schema(draw, depth - 1) for _ in range(draw.randrange(1, 3))]
            return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}
        case "anyOf":
            return {"anyOf": [random_schema(draw, depth - 1) for _ in range(draw.randrange(1, 4))]}
        case "object":
            names = draw.sample(_WORDS, draw.randrange(0, 4))
            properties = {name: random_schema(draw, depth - 1) for name in names}
            required = draw.sample(names, draw.randrange(len(names) + 1))
            more = draw.choice((False, False, {"type": "integer"}))
            return {"type": "object", "properties": properties, "required": required, "additionalProperties": more}
    return {"type": kind}


def prompts_of(seed: int, count: int, refused: Counter[str]) -> Iterator[Prompt]:
    """Prompts with random schemas that are valid; the reasons of refusals are counted."""
    draw = random.Random(seed)
    for _ in range(count):
        constraint = Constraint(ConstraintKind.SCHEMA, json.dumps(random_schema(draw)))
        try:
            check_constraint(constraint)
        except EngineError as error:
            refused[str(error)] += 1
        else:
            yield Prompt("Write an example.", constraint=constraint)


def check_replies(engine: Engine, seed: int, count: int, batch: int = 4) -> Counter[str]:
    """Ask for replies to so many schemas; how they ended.

    Raises:
        jsonschema.ValidationError, ValueError: a finished reply does not follow its schema.
    """
    ended: Counter[str] = Counter()
    prompts = [*prompts_of(seed, count, ended)]
    sampling = Sampling(temperature=1.0)
    for prompt, events in zip(
        prompts, run_pass(engine, Variant("auto", None), prompts, batch, sampling, _LONGEST), strict=True
    ):
        last = events[-1]
        assert isinstance(last, Finished)
        assert prompt.constraint
        ended[last.reason] += 1
        if last.reason is FinishReason.EOS:
            text = "".join(event.text for event in events if isinstance(event, Round)) + last.tail
            jsonschema.validate(json.loads(text), json.loads(prompt.constraint.text))
    return ended


def main() -> None:
    """Run and print how the replies ended."""
    parser = argparse.ArgumentParser(description="replies to random schemas validate")
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with running(EngineConfig(given.target, slots=4)) as (engine, *_):
        for number in range(0, given.count, 100):
            print(number, dict(check_replies(engine, given.seed + number, min(100, given.count - number))), flush=True)


if __name__ == "__main__":
    main()
