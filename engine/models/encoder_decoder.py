"""Checks of what encoder-decoders can be used for.

An encoder-decoder reads one text, the source, and writes another; it continues nothing, and holds no conversation.
"""

from __future__ import annotations

from typing import Protocol

from specchat.engine.errors import EngineError


class Named(Protocol):
    """A loaded model."""

    @property
    def name(self) -> str:
        """For display."""

    @property
    def start(self) -> int | None:
        """Token that replies of an encoder-decoder begin with; None for a decoder-only model."""


def require_decoder_only(model: Named, purpose: str) -> None:
    """Refuse an encoder-decoder for something.

    Args:
        model: that is loaded.
        purpose: what needs a model that continues text, as the beginning of a sentence.

    Raises:
        EngineError: it is one.
    """
    if model.start is not None:
        raise EngineError(
            f"{purpose} a model that continues text, and {model.name} is an encoder-decoder: choose another target"
        )


def check_same_kind(target: Named, draft: Named) -> None:
    """Check that a draft model reads what its target does.

    Raises:
        EngineError: one is an encoder-decoder, and the other is not.
    """
    if (target.start is None) is not (draft.start is None):
        both, other = ("an encoder-decoder", "is none") if target.start is not None else ("decoder-only", "is not")
        raise EngineError(
            f"{target.name} is {both} and the draft {draft.name} {other}: choose a draft of the target's kind"
        )
    if target.start != draft.start:
        raise EngineError(
            f"the draft {draft.name} begins its replies with token {draft.start} and {target.name} with "
            f"{target.start}: choose a draft of the same family"
        )
