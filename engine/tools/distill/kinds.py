"""The kinds of drafts that `specchat distill` makes, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from specchat.engine.progress import Progress
from specchat.engine.tools.distill.bigram import count_tables
from specchat.engine.tools.distill.distilled import Distilled
from specchat.engine.tools.distill.eagle import EagleRecipe
from specchat.engine.tools.distill.look_ahead import PassRecipe
from specchat.engine.tools.distill.medusa import MedusaRecipe
from specchat.engine.tools.distill.options import COUNTED, DistillOptions
from specchat.engine.tools.distill.training import distill_trained

Distill = Callable[[DistillOptions, Progress], Distilled]
"""Makes one kind."""

KINDS: Mapping[str, Distill] = {
    "eagle": partial(distill_trained, recipe_of=EagleRecipe),
    "medusa": partial(distill_trained, recipe_of=MedusaRecipe),
    "pass": partial(distill_trained, recipe_of=PassRecipe),
    COUNTED: count_tables,
}
