"""Speed of two lanes, compared with each lane alone, as a table.

Run from the repository: python -m benchmarks.measure_lanes

Tokens per second of the default model without drafts and with head and n-gram: interleaved, one after the other,
and alone without a second lane. They take turns, so that other load of the machine affects all of them.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from statistics import median

from benchmarks.interface.running import load_of_machine, specchat

PROMPT = "Write a short story about a clockmaker and a talking bird."
TOKENS = "96"
SET_UPS = {"left": "none", "right": "combined"}
GAMMA = "4"
WAYS = ("interleaved", "sequential", "alone")


def main() -> None:
    """Measure, and print the medians and the medians of the turns' ratios to running alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    turns = parser.parse_args().turns
    print(f"{turns} turns, {load_of_machine()}")
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(turns):
        for order in WAYS[:2]:
            for lane, rate in together(order).items():
                rates[order, lane].append(rate)
        for lane, drafter in SET_UPS.items():
            rates["alone", lane].append(alone(drafter))
    for lane, drafter in SET_UPS.items():
        print(drafter)
        for way in WAYS:
            own = rates[way, lane]
            ratio = median(a / b for a, b in zip(own, rates["alone", lane], strict=True))
            print(
                f"  {way:<12} {median(own):6.1f} tokens/s, {min(own):.1f} to {max(own):.1f}   {ratio - 1:+.1%} to alone"
            )


def together(order: str) -> dict[str, float]:
    """Tokens per second of each lane."""
    right = f"{SET_UPS['right']}:gamma={GAMMA}"
    found = specchat("compare", PROMPT, "--right", right, "--order", order, "--repeat", "1", "--max-tokens", TOKENS)
    row = found["rows"][0]
    return {lane: row[lane]["tokens_per_second"]["median"] for lane in SET_UPS}


def alone(drafter: str) -> float:
    """Tokens per second of one set-up in a separate engine."""
    options = ("--drafter", drafter) if drafter == "none" else ("--drafter", drafter, "--gamma", GAMMA)
    rate: float = specchat("ask", PROMPT, *options, "--max-tokens", TOKENS)["tokens_per_second"]
    return rate


if __name__ == "__main__":
    main()
