"""What a drafter states about its drafts, for all rows and for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from specchat.engine.decoding.proposal import Offers

LATER_RATE = 0.06
"""Prior acceptance rate of a token that is offered next to a likelier one."""


@dataclass(frozen=True, slots=True)
class DrafterProfile:
    """Properties of a drafter that hold for all rows."""

    buckets: Sequence[int] = ()
    """Confidence buckets of its tokens; empty if it gives none."""
    expected_rates: Mapping[int, float] = field(default_factory=dict)
    """Prior acceptance rate by bucket."""
    methods: Sequence[int] = (0,)
    """The first bucket of each method of drafting, for drafters that combine several."""
    proposes_at_zero: bool = False
    """Whether `propose` is also called for γ 0, since part of its drafts costs nothing."""


@dataclass(frozen=True, slots=True)
class RowProfile:
    """Properties of a drafter for one row."""

    offers: Offers | None = None
    """Shape of its drafts by γ, if known before drafting."""
    grows: bool = False
    """Whether it decides while drafting how long a draft is, within a `Budget`."""
    free: bool = False
    """Whether its drafts take no draft step, so that no γ has to be chosen."""
    sure_bucket: Callable[[], int | None] = lambda: None
    """Bucket of the first token of its next draft, if that takes no draft step and is nearly always right."""
