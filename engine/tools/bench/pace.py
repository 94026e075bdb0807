"""Peers: other decoders that the engine is compared with, and their speed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from specchat.engine.tools.bench.cell import Place
from specchat.engine.tools.bench.plan import NONE, Variant
from specchat.engine.tools.bench.prompts import Prompt
from specchat.engine.tools.bench.tally import Tally


@dataclass(frozen=True, slots=True)
class Pace:
    """Tokens emitted after the first of each reply (which excludes prefill), and the seconds they took."""

    tokens: int
    seconds: float


class Peer(Protocol):
    """Another decoder that runs the same prompts with the same model."""

    name: str
    gamma: int
    """Draft length; 0 for plain decoding."""

    def refusal(self, batch: int) -> str | None:
        """Why it cannot run `batch` requests at once; None if it can."""

    def run(self, prompts: Sequence[Prompt], batch: int, temperature: float, max_tokens: int) -> Pace:
        """Decode all prompts, `batch` at once."""

    def read(self, ids: Sequence[int]) -> float | None:
        """Seconds to read a prompt without its last token; None if that cannot be measured."""


@dataclass(frozen=True, slots=True)
class PeerCell:
    """Speed of a peer; medians over the passes."""

    prompts: str
    batch: int
    temperature: float
    name: str
    gamma: str
    """Draft length; - for plain decoding."""
    tokens: int
    tokens_per_second: float
    measured_speedup: float
    """The engine's time per token of plain decoding / the peer's time per token, pass by pass."""
    variants: dict[str, float]
    """The peer's time per token / that of each of the engine's variants, pass by pass."""


def make_peer_cell(
    place: Place, peer: Peer, paces: Sequence[Pace], ours: Mapping[Variant, Sequence[Tally]]
) -> PeerCell | None:
    """Compute a peer's figures against the engine's variants; None if it timed no tokens."""
    timed = [pace for pace in paces if pace.tokens and pace.seconds > 0]
    if not timed:
        return None
    return PeerCell(
        prompts=place.prompts,
        batch=place.batch,
        temperature=place.temperature,
        name=peer.name,
        gamma=str(peer.gamma or "-"),
        tokens=sum(pace.tokens for pace in timed),
        tokens_per_second=statistics.median(pace.tokens / pace.seconds for pace in timed),
        measured_speedup=statistics.median(1 / ratio for ratio in _ratios(paces, ours[NONE])),
        variants={variant.name: statistics.median(_ratios(paces, tallies)) for variant, tallies in ours.items()},
    )


def _ratios(paces: Sequence[Pace], tallies: Sequence[Tally]) -> list[float]:
    """The peer's time per token / the engine's, of each pass in which the peer timed tokens."""
    return [
        (pace.seconds / pace.tokens) / (tally.seconds / tally.tokens)
        for pace, tally in zip(paces, tallies, strict=True)
        if pace.tokens and pace.seconds > 0
    ]
