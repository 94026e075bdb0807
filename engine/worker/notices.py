"""Notices for users: what should be known about loaded models, and performance warnings. Each is emitted once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specchat.engine.decoding.backend import Backend
from specchat.engine.events import Notice, Outbox
from specchat.engine.models.packed.load import Model

INEXACT = (
    "exact mode cannot be given here: on this device the same token gets other bits at another place of a pass, so "
    "greedy texts may differ where two tokens are close; --dtype float32 makes that rare"
)
UNREPEATABLE = (
    "in {dtype} a greedy reply may differ from run to run: gamma adapts to measured times, and a pass of another width "
    "rounds otherwise; a fixed --gamma or --dtype float32 repeats"
)


class Notices:
    """Emits notices to the users of an engine, each of them once.

    Args:
        outbox: for events that concern the engine as a whole.
        clock: seconds since the engine started.
    """

    def __init__(self, outbox: Outbox, clock: Callable[[], float]) -> None:
        self._outbox = outbox
        self._clock = clock
        self._told: set[str] = set()

    def tell(self, texts: Sequence[str]) -> None:
        """Emit the notices that have not been emitted."""
        for text in texts:
            if text not in self._told:
                self._told.add(text)
                self._outbox.put(Notice(None, text, self._clock()))


def notices_of(
    model: Model, target: Backend, drafts: Sequence[Model], runners: Sequence[Backend], reduced: tuple[int, int] | None
) -> list[str]:
    """Notices about a target and its draft models.

    Args:
        model: the target.
        target: its passes.
        drafts: draft models.
        runners: the passes of each.
        reduced: slots and context, if less than requested.
    """
    notices = []
    if reduced:
        notices.append(f"memory is short: there is room for {reduced[0]} replies at once of {reduced[1]} tokens each")
    if not model.tokenizer.chat_template and model.start is None:
        notices.append(f"{model.name} is a base model, without a chat template: it continues text and may not answer")
    if model.recommended.notice:
        notices.append(f"{model.name}: {model.recommended.notice}")
    notices += [
        f"the draft {draft.name} ({draft.weight_bytes / 1e9:.2f} GB) is not smaller than the target {model.name} "
        f"({model.weight_bytes / 1e9:.2f} GB): drafting with it cannot pay"
        for draft in drafts
        if draft.weight_bytes >= model.weight_bytes
    ]
    notices += [
        f"{each.name} reads every text with its factors for long ones, as the context is {passes.context}: with "
        f"--context {passes.short_context} it uses those it was first trained with"
        for each, passes in zip((model, *drafts), (target, *runners), strict=True)
        if passes.short_context is not None
    ]
    return notices
