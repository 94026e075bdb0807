"""What drafts of certain text gain: ten JSON schemas, with the grammar as a source of drafts, without it, and plain.

Run from the repository, on a quiet machine: python -m benchmarks.measure_schemas [--target MODEL]

Passes alternate; each variant decodes all prompts one after the other. The speed is that of the tokens after a reply's
first round, all passes together. "Mask" is the median time of one mask of a reply's own text, on one idle core.
llama.cpp with its grammar: specchat bench --prompts schemas --peer llama.cpp --batch 1
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from unittest.mock import patch

from specchat.engine import EngineConfig, Event, Round, Sampling
from specchat.engine.sequence.row_constraint import Constraints, Forced, RowConstraint
from specchat.engine.tools.prompts import CONSTRAINED, Prompt, load_prompts
from specchat.engine.tools.runner import NONE, Variant, reply_tokens, run_pass, running
from specchat.engine.worker.assembly import Assembly

VARIANTS = {
    "plain": (NONE, True),
    "without grammar": (Variant("auto", None), False),
    "with": (Variant("auto", None), True),
}


@contextmanager
def source(on: bool) -> Iterator[None]:
    """Switch drafts of certain text on or off."""

    def nothing(row: RowConstraint, *, first: bool) -> list[Forced]:  # noqa: ARG001
        return []

    if on:
        yield
        return
    with patch.object(RowConstraint, "_forced", nothing):
        yield


def pace(events: Sequence[Event]) -> tuple[int, float, int]:
    """Tokens, seconds and rounds of a reply after its first round."""
    rounds = [event for event in events if isinstance(event, Round)]
    return sum(len(each.emitted) for each in rounds[1:]), rounds[-1].at - rounds[0].at, len(rounds) - 1


def mask_seconds(made: Assembly, prompts: Sequence[Prompt], replies: Sequence[Sequence[int]]) -> float:
    """Median time of a mask."""
    constraints = Constraints(made.model.tokenizer, made.target.vocabulary, made.model.eos_ids)
    times = []
    for prompt, reply in zip(prompts, replies, strict=True):
        assert prompt.constraint
        row = constraints.of(prompt.constraint, "", [], 0)
        for length in range(len(reply)):
            row.read(reply[:length])
            started = perf_counter()
            row.masks(reply[:length])
            times.append(perf_counter() - started)
    return median(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="what drafts of certain text gain")
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--temperature", type=float, default=0.0)
    given = parser.parse_args()
    (prompts,), sampling = load_prompts([CONSTRAINED]), Sampling(given.temperature, seed=1)
    sums = {name: [0.0, 0.0, 0.0] for name in VARIANTS}
    with running(EngineConfig(given.target, slots=1)) as (engine, _, made):
        for number in range(1 + given.passes):  # the first one warms up
            for name, (variant, on) in VARIANTS.items():
                with source(on):
                    events = run_pass(engine, variant, prompts.prompts, 1, sampling, 256)
                for each in map(pace, events) if number else ():
                    sums[name] = [sum(pair) for pair in zip(sums[name], each, strict=True)]
        one_mask = mask_seconds(made, prompts.prompts, [reply_tokens(each) for each in events])
    for name, (tokens, seconds, rounds) in sums.items():
        print(f"{name:<16} {tokens / seconds:8.1f} tokens/s {tokens / rounds:6.2f} tokens per round")
    rate = {name: tokens / seconds for name, (tokens, seconds, _) in sums.items()}
    print(f"gain of the grammar {rate['with'] / rate['without grammar']:.2f}")
    print(f"mask {one_mask * 1e6:.0f} µs at {made.target.vocabulary:,} tokens")


if __name__ == "__main__":
    main()
