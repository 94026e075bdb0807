"""What a peer gives: tokens and the seconds they took."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.bench.cell import Place
from engine.bench.prompts import Prompt
from engine.bench.tally import Tally


@dataclass(frozen=True, slots=True)
class Pace:
    """Tokens emitted after the first of each reply (so that prefill is left out), and the time they took."""

    tokens: int
    seconds: float


class Peer(Protocol):
    """Another program that decodes the same prompts with the same model."""

    name: str
    gamma: int
    """Draft length; 0 where it does not draft."""

    def refusal(self, batch: int) -> str | None:
        """Why it cannot run so many requests at once; None where it can."""

    def run(self, prompts: Sequence[Prompt], batch: int, temperature: float, max_tokens: int) -> Pace:
        """Run every prompt, `batch` at once."""


@dataclass(frozen=True, slots=True)
class PeerCell:
    """How fast a peer is; medians over the passes."""

    prompts: str
    batch: int
    temperature: float
    name: str
    gamma: str
    """Draft length; - where it does not draft."""
    tokens: int
    tokens_per_second: float
    measured_speedup: float
    """Our time per token of plain decoding / its time per token, pass by pass."""


def make_peer_cell(place: Place, peer: Peer, paces: Sequence[Pace], baseline: Sequence[Tally]) -> PeerCell | None:
    """A peer's figures beside our plain decoding; None where it had nothing to time."""
    pairs = [(pace, plain) for pace, plain in zip(paces, baseline, strict=True) if pace.tokens and pace.seconds > 0]
    if not pairs:
        return None
    return PeerCell(
        prompts=place.prompts,
        batch=place.batch,
        temperature=place.temperature,
        name=peer.name,
        gamma=str(peer.gamma or "-"),
        tokens=sum(pace.tokens for pace, _ in pairs),
        tokens_per_second=statistics.median(pace.tokens / pace.seconds for pace, _ in pairs),
        measured_speedup=statistics.median(
            (plain.seconds / plain.tokens) / (pace.seconds / pace.tokens) for pace, plain in pairs
        ),
    )
