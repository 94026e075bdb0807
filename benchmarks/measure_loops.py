"""Share of replies that end with EOS, by sampling settings: python -m benchmarks.measure_loops [NAME=VALUE,... ...]

The default model answers the everyday prompts of `assets/prompts/daily.json`. A reply runs into the limit, or repeats
itself (`engine.sequence.sequence`). Settings are options of `Sampling`, as repetition_penalty=1.1,temperature=0.7;
without any, the settings among which the default was chosen are compared.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specchat.engine import EngineConfig, Sampling
from specchat.engine.events import Event, Finished
from specchat.engine.models import DEFAULT_PRESET
from specchat.engine.round import Round
from specchat.engine.sequence.sequence import Repetition
from specchat.engine.tools.prompts import Prompt
from specchat.engine.tools.runner import Variant, reply_tokens, run_pass, running

PROMPTS = Path(__file__).parents[1] / "assets" / "prompts" / "daily.json"
SETTINGS = (
    "temperature=0",
    "repetition_penalty=1.1",
    "repetition_penalty=1.15",
    "dry_multiplier=0.8",
    "dry_multiplier=0.8,repetition_penalty=1.05",
    "dry_multiplier=0.8,repetition_penalty=1.1",
    "temperature=0.2,top_p=0.9",
    "temperature=0.2,top_p=0.9,repetition_penalty=1.1",
)


def main() -> None:
    """Measure, and print a line for each of the settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", default=SETTINGS)
    parser.add_argument("--target", default=DEFAULT_PRESET)
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument("--replies", type=Path, help="a JSON file for the replies")
    given = parser.parse_args()
    prompts = [Prompt(text) for text in json.loads(PROMPTS.read_text(encoding="utf-8"))["prompts"]]
    replies: dict[str, list[dict[str, Any]]] = {}
    with running(EngineConfig(given.target, slots=4)) as (engine, _, _):
        for text in given.settings:
            variant, sampling = Variant("auto", None), parsed(text)
            found = run_pass(engine, variant, prompts, 4, sampling, given.max_tokens)
            replies[text] = [summary(prompt, events) for prompt, events in zip(prompts, found, strict=True)]
            print(f"{text:<50} {line(replies[text])}", flush=True)
            if given.replies:
                given.replies.write_text(json.dumps(replies, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def parsed(text: str) -> Sampling:
    """Sampling settings with seed 0 from NAME=VALUE,…"""
    pairs = dict(part.split("=", 1) for part in text.split(","))
    return Sampling(**{"seed": 0, **{name: json.loads(value) for name, value in pairs.items()}})


def summary(prompt: Prompt, events: Sequence[Event]) -> dict[str, Any]:
    """One reply: how it ended, whether it repeated itself, its length and text."""
    tokens, watch = reply_tokens(events), Repetition()
    reason = next(event.reason for event in events if isinstance(event, Finished))
    text = "".join(event.text for event in events if isinstance(event, Round))
    return {
        "prompt": prompt.text,
        "reason": reason,
        "repeats": sum(watch.add(token) for token in tokens) > 0,
        "tokens": len(tokens),
        "text": text,
    }


def line(replies: Sequence[dict[str, Any]]) -> str:
    """Replies that ended with EOS, ran into the limit, and repeated themselves; tokens of the median."""
    reasons = Counter(reply["reason"] for reply in replies)
    repeating = sum(reply["repeats"] for reply in replies)
    median = sorted(reply["tokens"] for reply in replies)[len(replies) // 2]
    ended = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    return f"{ended}; {repeating} repeat themselves; median {median} tokens"


if __name__ == "__main__":
    main()
