"""Stream the rounds of one reply with the library alone: what was drafted, what was kept, and how fast.

Run: python examples/stream.py "Name three rivers" [TARGET]
"""

import sys

from specchat.engine import Admitted, Engine, EngineConfig, EngineError, Finished, Message, Metrics, Request, Round


def main(prompt: str, target: str = "smollm2-135m") -> None:
    """Print each round on a line of its own, then the figures of the whole reply."""
    metrics = Metrics()
    with Engine(EngineConfig(target)) as engine:
        engine.wait_ready()
        for event in engine.stream(Request("example", messages=(Message("user", prompt),), max_tokens=64)):
            if isinstance(event, Admitted | Round):
                metrics.add(event)
            if isinstance(event, Round):
                fates = " ".join(f"{token.text!r}:{token.fate}" for token in event.tokens())
                print(f"{event.number:3}  γ {event.gamma}  accepted {event.accepted}  {fates}")
            elif isinstance(event, Finished) and event.message:
                print(event.message)
        if metrics.mean_emitted_length and metrics.tokens_per_second:
            print(f"{metrics.mean_emitted_length:.2f} tokens per target pass, {metrics.tokens_per_second:.1f} tokens/s")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:3])
    except EngineError as error:
        sys.exit(str(error))
