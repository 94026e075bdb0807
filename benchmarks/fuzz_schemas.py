"""JSON schemas, random or from files: every finished reply of a model at temperature 1 validates, and no reply hangs.

Run from the repository: python -m benchmarks.fuzz_schemas --count 10000 [--results FILE] [FILE…]

A FILE is a schema, a list of objects with the key `schema` (as in JSON-Schema-Test-Suite), or a folder of such files.
Each schema is refused, or its reply is valid, or is cut off at the token limit; anything else ends the run with code 1.
What is no valid schema of its own draft is not asked for, as no reply could be judged by it.
With --results, a line for each schema is written to a file, and those in it are left out, so that a run can be resumed.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry

from specchat.engine import Constraint, ConstraintKind, Engine, EngineConfig, EngineError, FinishReason, Sampling
from specchat.engine.events import Event, Finished, Outbox
from specchat.engine.round import Round
from specchat.engine.sequence.grammar import check_constraint
from specchat.engine.tools.prompts import Prompt
from specchat.engine.tools.runner import Variant, make_request, running

_WORDS = ("name", "id", "größe", "a b", "x", "user_name", "créé", "日付", "created_at", 'quo"te', "is-ok")
NO_SCHEMA, REFUSED, INVALID = "no schema", "refused", "invalid"
ENDS = (NO_SCHEMA, REFUSED, FinishReason.EOS, FinishReason.LENGTH)
"""How a request may end."""
_PATIENCE_S = 300


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


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request with a schema ended."""

    name: str
    ended: str
    """A reason to finish, `NO_SCHEMA`, `REFUSED`, or `INVALID` for a reply that does not follow its schema."""
    about: str = ""
    """Why there is no reply; what is wrong with an invalid one, and the reply."""


def random_schemas(seed: int, count: int) -> Iterator[tuple[str, str]]:
    """Names and texts of random schemas."""
    draw = random.Random(seed)
    yield from ((f"{seed}/{number}", json.dumps(random_schema(draw))) for number in range(count))


def stored_schemas(files: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Names and texts of the schemas in files and folders."""
    for file in files:
        if file.is_dir():
            yield from stored_schemas(sorted(file.rglob("*.json")))
            continue
        text = file.read_text(encoding="utf-8-sig")
        read = json.loads(text)
        if isinstance(read, list):
            yield from ((f"{file}/{number}", json.dumps(each["schema"])) for number, each in enumerate(read))
        else:
            yield str(file), text


def ask_all(engine: Engine, schemas: Iterable[tuple[str, str]], batch: int, max_tokens: int) -> Iterator[Outcome]:
    """Ask for a reply to each schema, `batch` at once; how they ended, in the order of their ends.

    Raises:
        EngineError: a request hangs.
    """
    outbox, sampling = Outbox(), Sampling(temperature=1.0)
    open_requests: dict[str, tuple[str, str, list[Event]]] = {}
    waiting = iter(schemas)
    while True:
        while len(open_requests) < batch and (given := next(waiting, None)):
            name, text = given
            try:
                validator_for(schema := json.loads(text), default=Draft202012Validator).check_schema(schema)
                constraint = Constraint(ConstraintKind.SCHEMA, text)
                check_constraint(constraint)
            except (SchemaError, EngineError) as error:
                yield Outcome(name, REFUSED if isinstance(error, EngineError) else NO_SCHEMA, str(error))
                continue
            prompt = Prompt("Write an example.", constraint=constraint)
            request = make_request(Variant("auto", None), prompt, sampling, max_tokens)
            open_requests[request.request_id] = (name, text, [])
            engine.submit(request, outbox)
        if not open_requests:
            return
        event = outbox.get(_PATIENCE_S)
        if event is None:
            raise EngineError(f"no round for {_PATIENCE_S} s: {[name for name, *_ in open_requests.values()]}")
        if (request_id := getattr(event, "request_id", None)) in open_requests:
            open_requests[request_id][2].append(event)
            if isinstance(event, Finished):
                yield _outcome(*open_requests.pop(request_id))


def _outcome(name: str, schema: str, events: list[Event]) -> Outcome:
    last = events[-1]
    assert isinstance(last, Finished)
    if last.reason is FinishReason.EOS:
        text = "".join(event.text for event in events if isinstance(event, Round)) + last.tail
        if wrong := _problem(text, json.loads(schema, parse_float=Decimal)):
            return Outcome(name, INVALID, f"{wrong}: {text}")
    return Outcome(name, last.reason, last.message)


def _problem(text: str, schema: dict[str, Any]) -> str | None:
    """Why a text does not follow a schema; None if it does."""
    judge = validator_for(schema, default=Draft202012Validator)(schema, registry=Registry())
    try:
        judge.validate(json.loads(text, parse_float=Decimal))
    except (ValueError, ValidationError, re.error) as error:
        return f"{type(error).__name__}: {error.args[0]}"
    except InvalidOperation:  # whether a number such as 1e1000000 is a multiple
        return None
    return None


def main() -> None:
    """Run and print how the replies ended."""
    parser = argparse.ArgumentParser(description="replies to JSON schemas validate")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--count", type=int, default=1000, help="of random schemas, without files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    known = set()
    if given.results and given.results.exists():
        known = {json.loads(line)["name"] for line in given.results.read_text().splitlines()}
    schemas = [*(stored_schemas(given.files) if given.files else random_schemas(given.seed, given.count))]
    random.Random(given.seed).shuffle(schemas)
    left = (each for each in schemas if each[0] not in known)
    ended: Counter[str] = Counter()
    with running(EngineConfig(given.target, slots=given.batch)) as (engine, *_):
        for outcome in ask_all(engine, left, given.batch, given.max_tokens):
            ended[outcome.ended] += 1
            if given.results:
                with given.results.open("a") as out:
                    print(json.dumps(asdict(outcome)), file=out)
            if outcome.ended not in ENDS:
                print(outcome, file=sys.stderr)
            if ended.total() % 100 == 0:
                print(dict(ended), flush=True)
    print(dict(ended))
    sys.exit(any(end not in ENDS for end in ended))


if __name__ == "__main__":
    main()
