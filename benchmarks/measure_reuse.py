"""What the cache of all chats saves: times to the first token of chats, candidates and clients that share text.

Run from the repository, on a quiet machine: python -m benchmarks.measure_reuse

Prompts are random tokens, so that nothing is known by chance. "First token" is from the submission of a request to the
end of its first round, the median over requests. The engine drafts nothing.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from statistics import median

from specchat.engine import Admitted, Engine, EngineConfig, Round, Sampling
from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.tools.prompts import Prompt
from specchat.engine.tools.runner import NONE, run_pass, running

CHATS, CHAT_TOKENS = 50, 1000
SHORT_TOKENS = 60
"""Tokens of a chat of two messages."""
CANDIDATES, PROMPT_TOKENS = 4, 2000
CLIENTS, SYSTEM_TOKENS, QUESTION_TOKENS = 64, 1000, 20
_WORDS = range(1000, 20_000)


class Asker:
    """Sends prompts of random tokens to an engine.

    Args:
        engine: that runs.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._draw = engine, random.Random(0)

    def text(self, length: int) -> list[int]:
        """Random tokens."""
        return self._draw.choices(_WORDS, k=length)

    def first_tokens(self, prompts: Sequence[Sequence[int]], most: int = 1) -> list[float]:
        """Send all prompts at once; seconds to the first token of each."""
        asked = [Prompt(ids=tuple(prompt)) for prompt in prompts]
        firsts = []
        for events in run_pass(self._engine, NONE, asked, len(asked), Sampling(), most):
            admitted = next(event for event in events if isinstance(event, Admitted))
            first = next(event for event in events if isinstance(event, Round))
            firsts.append(first.at - admitted.at + admitted.queued_s)
        return firsts


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="what the cache of all chats saves")
    parser.add_argument("--target", default="smollm2-135m")
    target = parser.parse_args().target
    with running(EngineConfig(target, slots=4)) as (engine, ready, _):
        ask = Asker(engine)
        chats = [ask.text(CHAT_TOKENS) for _ in range(CHATS)]
        read = [ask.first_tokens([chat])[0] for chat in chats]
        again = [ask.first_tokens([[*chat, *ask.text(QUESTION_TOKENS)]])[0] for chat in chats]
        short = [ask.text(SHORT_TOKENS) for _ in range(CHATS)]
        for each in short:
            ask.first_tokens([each])
        second = [ask.first_tokens([[*each, *ask.text(QUESTION_TOKENS)]])[0] for each in short]
        print(
            f"{CHATS} chats of {CHAT_TOKENS} tokens: first token when new {median(read):.3f} s, asked again "
            f"{median(again):.3f} s; chats of {SHORT_TOKENS} tokens asked again {median(second):.3f} s; "
            f"ratio {median(again) / median(second):.2f}"
        )
        one, four = [], []
        for _ in range(3):
            one.append(max(ask.first_tokens([ask.text(PROMPT_TOKENS)])))
            four.append(max(ask.first_tokens([ask.text(PROMPT_TOKENS)] * CANDIDATES)))
        print(
            f"{CANDIDATES} candidates of a prompt of {PROMPT_TOKENS} tokens: all first tokens after "
            f"{median(four):.3f} s, one candidate {median(one):.3f} s, ratio {median(four) / median(one):.3f}"
        )
        tokens = ready.kept_bytes / (ready.slot_bytes / (ready.context + BLOCK))
        print(f"cache: {ready.kept_bytes / 1e9:.2f} GB, about {tokens:,.0f} tokens")
    with running(EngineConfig(target, slots=CLIENTS)) as (engine, _, _):
        ask = Asker(engine)
        system = ask.text(SYSTEM_TOKENS)
        waits = ask.first_tokens([[*system, *ask.text(QUESTION_TOKENS)] for _ in range(CLIENTS)], most=16)
        print(f"{CLIENTS} clients with one system prompt of {SYSTEM_TOKENS} tokens: median wait {median(waits):.3f} s")
        waits = ask.first_tokens([[*system, *ask.text(QUESTION_TOKENS)] for _ in range(CLIENTS)], most=16)
        print(f"the same again: median wait {median(waits):.3f} s")


if __name__ == "__main__":
    main()
