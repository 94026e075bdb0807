"""All ways of drafting with a draft model."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.drafter import Drafter
from specchat.engine.decoding.proposal import Support
from specchat.engine.drafters.draft_cache import DraftCache
from specchat.engine.drafters.draft_model import ModelDrafter
from specchat.engine.drafters.hierarchical import HierarchicalDrafter
from specchat.engine.drafters.merged import Member, MergedDrafter
from specchat.engine.drafters.model_steps import ModelSteps
from specchat.engine.drafters.model_tree import ModelTreeDrafter
from specchat.engine.drafters.suffix import SuffixDrafter
from specchat.engine.sampling.penalties import Penalties


def drafters_of(
    drafts: Sequence[Backend],
    names: Sequence[str],
    target: Backend,
    penalties: Penalties,
    suffix: SuffixDrafter,
    chunk: int,
) -> list[Drafter]:
    """The drafters of draft models, best first: what all of them draft together, then those of the first one alone.

    They share what the caches hold.

    Args:
        drafts: passes of the draft models, at least one.
        names: display names of the draft models.
        target: passes of the target.
        penalties: of the target's rows.
        suffix: drafts for the first draft model too.
        chunk: prompt tokens that a draft model reads in one pass.
    """
    members = [
        Member(name, DraftCache(draft, chunk), ModelSteps(draft, penalties, target.vocabulary), draft)
        for name, draft in zip(told_apart(names), drafts, strict=True)
    ]
    draft, cache, steps = drafts[0], members[0].cache, members[0].steps
    chains, branches = ModelDrafter(draft, cache, steps), target.capabilities.trees
    support = Support.of(torch.arange(target.vocabulary, device=target.device), target.vocabulary)
    merged = [MergedDrafter(members, chains, draft.device, branches=branches)] if len(members) > 1 else []
    trees: Drafter = ModelTreeDrafter(draft, cache, steps, chains, support, branches=branches)
    sped_up = HierarchicalDrafter(draft, cache, steps, penalties, suffix, target.vocabulary)
    return [*merged, chains, trees, sped_up]


def told_apart(names: Sequence[str]) -> list[str]:
    """The names, with a number behind those that several have."""
    return [
        f"{name} ({names[: place + 1].count(name)})" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]
