"""Warm-up: kernels are chosen, compiled and captured before a round is timed."""

from __future__ import annotations

from specchat.engine.worker.assembly import Assembly


def warm_up(made: Assembly) -> None:
    """Warm up the target, the draft models and the drafters.

    Raises:
        torch.OutOfMemoryError: there is not enough memory for it.
    """
    supports = {id(support): support for drafter in made.drafters.built.values() for support in drafter.supports}
    made.target.warm_up(tuple(supports.values()))
    for backend in made.draft_runners:
        backend.warm_up()
    made.drafters.warm_up()
