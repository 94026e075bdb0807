"""Drafts of several kinds for one target, as one table: acceptance along its own replies, and speed in the bench.

Run from the repository: python -m benchmarks.compare_kinds FOLDER… [--target MODEL]

The folders were made by `specchat distill`. The first row is the shipped head, or the default drafter of the target.
The target first answers prompts of kinds that drafts are not trained on, without drafts. Each draft is then evaluated
along these replies (τ, c and the predicted speedup), and timed against no drafts in a separate run of the bench. The
commands are printed, so that each row can be reproduced.
"""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.interface.running import load_of_machine, specchat
from specchat.engine import EngineConfig, Round, Sampling
from specchat.engine.tools.prompts import load_prompts
from specchat.engine.tools.runner import NONE, run_pass, running

SETS = ("code", "copy", "structured")
"""Prompt sets that share no kind with the conversations that `distill` trains on."""
GAMMA = "4"
_HEADER = f"{'draft':28}{'drafter':10}{'τ':>6}{'c':>8}{'predicted':>11}{'bench τ':>9}{'measured':>10}"


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--limit", type=int, default=2, help="prompts of each set")
    parser.add_argument("--max-tokens", type=int, default=64)
    given = parser.parse_args()
    print(f"γ {GAMMA}, greedy, prompts of {', '.join(SETS)}; {load_of_machine()}")
    with TemporaryDirectory() as folder:
        texts = Path(folder) / "replies.jsonl"
        texts.write_text("".join(answered(given.target, given.limit, given.max_tokens)), encoding="utf-8")
        rows = [row(given, texts, draft) for draft in (None, *given.folders)]
    print("\n".join(["", _HEADER, *rows]))


def answered(target: str, limit: int, max_tokens: int) -> list[str]:
    """Lines of JSON: prompts with the target's greedy replies."""
    lines = []
    with running(EngineConfig(target)) as (engine, _, _):
        for name in SETS:
            for prompt in load_prompts([name])[0].prompts[:limit]:
                (events,) = run_pass(engine, NONE, [prompt], 1, Sampling(), max_tokens)
                reply = "".join(event.text for event in events if isinstance(event, Round))
                turns = [{"role": "user", "content": prompt.text}, {"role": "assistant", "content": reply}]
                lines.append(json.dumps({"category": name, "messages": turns}) + "\n")
    return lines


def row(given: argparse.Namespace, texts: Path, draft: Path | None) -> str:
    """One draft's line of the table."""
    drafter = "pass" if draft and (draft / "look-ahead.json").is_file() else "head"
    chosen = ["--target", given.target, *(["--draft", str(draft)] if draft else []), "--drafter", drafter]
    evaluated = figures("evaluate", str(texts), *chosen, "--gamma", GAMMA)["figures"][0]
    sets = [word for name in SETS for word in ("--prompts", name)]
    lengths = ["--gamma", GAMMA, "--limit", str(given.limit), "--max-tokens", str(given.max_tokens)]
    cells = [cell for cell in figures("bench", *chosen, *sets, *lengths)["cells"] if cell["drafter"] == drafter]
    tau, speedup = (mean([cell[name] for cell in cells]) for name in ("mean_emitted_length", "measured_speedup"))
    return (
        f"{draft.name if draft else 'shipped':28}{drafter:10}{evaluated['tau']:6.2f}{evaluated['c']:8.3f}"
        f"{evaluated['predicted_speedup']:10.2f}x{tau:9.2f}{speedup:9.2f}x"
    )


def mean(values: list[float]) -> float:
    """Text of one figure over the prompt sets."""
    return sum(values) / len(values)


def figures(*words: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    print("specchat", shlex.join(words)[:150], flush=True)
    found: dict[str, Any] = specchat(*words)
    return found


if __name__ == "__main__":
    main()
