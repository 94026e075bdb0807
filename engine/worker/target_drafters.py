"""Ways of drafting with the target itself."""

from __future__ import annotations

from specchat.engine.decoding.backend import Backend
from specchat.engine.drafters.look_ahead.drafter import LookAheadDrafter
from specchat.engine.drafters.look_ahead.folder import LookAhead
from specchat.engine.errors import EngineError
from specchat.engine.models.packed.load import PackedModel
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.worker.obtain import Model


def look_ahead_drafter(loaded: LookAhead, model: Model, target: Backend, penalties: Penalties) -> LookAheadDrafter:
    """The target as its own draft, by trained embeddings.

    Raises:
        EngineError: nothing can ride in this target's passes, or not as in training.
    """
    if not target.capabilities.trees:
        raise EngineError("look-ahead embeddings ride in passes of any shape, which exact mode has not: do without one")
    if isinstance(model, PackedModel) and model.shape.embedding_scale != 1:
        raise EngineError(
            f"{model.name} scales its embeddings, and look-ahead embeddings are not: choose another draft for it"
        )
    return LookAheadDrafter(loaded.embeddings, target, penalties)
