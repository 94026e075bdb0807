"""All ways of drafting with a draft model."""

from __future__ import annotations

import torch

from specchat.engine.runner.runner import Runner
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.speculation.drafters.base import Drafter
from specchat.engine.speculation.drafters.draft_cache import LEAD, DraftCache
from specchat.engine.speculation.drafters.draft_model import ModelDrafter
from specchat.engine.speculation.drafters.hierarchical import HierarchicalDrafter
from specchat.engine.speculation.drafters.model_fixed_tree import FixedTreeDrafter
from specchat.engine.speculation.drafters.model_steps import ModelSteps
from specchat.engine.speculation.drafters.model_tree import ModelTreeDrafter
from specchat.engine.speculation.drafters.static_trees import StaticTrees
from specchat.engine.speculation.drafters.suffix import SuffixDrafter
from specchat.engine.speculation.proposal import Support


def drafters_of(
    draft: Runner, target: Runner, penalties: Penalties, suffix: SuffixDrafter, chunk: int
) -> list[Drafter]:
    """The drafters of one draft model, best first; they share its cache.

    Args:
        draft: passes of the draft model.
        target: passes of the target.
        penalties: of the target's rows.
        suffix: drafts for the draft model too.
        chunk: prompt tokens that the draft model reads in one pass.
    """
    cache, steps = DraftCache(draft, chunk), ModelSteps(draft, penalties, target.vocabulary, LEAD)
    chains, branches = ModelDrafter(draft, cache, steps), target.branches
    support = Support.of(torch.arange(target.vocabulary, device=target.device), target.vocabulary)
    if draft.graph_runner is not None:
        levels = StaticTrees(draft.graph_runner, steps.fit, target.vocabulary)
        return [chains, FixedTreeDrafter(cache, levels, chains, support, draft.device, branches=branches)]
    if draft.device.type != "cpu":  # an encoder-decoder, which has no graphs: what follows works on the host
        return [chains]
    trees = ModelTreeDrafter(draft, cache, steps, chains, support, branches=branches)
    return [chains, trees, HierarchicalDrafter(draft, cache, steps, penalties, suffix)]
