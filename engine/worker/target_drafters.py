"""Ways of drafting with the target itself."""

from __future__ import annotations

from contextlib import suppress

from specchat.engine.backends.runner import Runner
from specchat.engine.drafters.early_exit import SAMPLE, EarlyExitDrafter
from specchat.engine.drafters.look_ahead.drafter import LookAheadDrafter
from specchat.engine.drafters.look_ahead.folder import LookAhead
from specchat.engine.errors import EngineError
from specchat.engine.models.packed.load import PackedModel
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.worker.obtain import Model


def look_ahead_drafter(loaded: LookAhead, model: Model, target: Runner, penalties: Penalties) -> LookAheadDrafter:
    """The target as its own draft, by trained embeddings.

    Raises:
        EngineError: nothing can ride in this target's passes, or not as in training.
    """
    if not target.branches:
        raise EngineError("look-ahead embeddings ride in passes of any shape, which exact mode has not: do without one")
    if isinstance(model, PackedModel) and model.shape.embedding_scale != 1:
        raise EngineError(
            f"{model.name} scales its embeddings, and look-ahead embeddings are not: choose another draft for it"
        )
    return LookAheadDrafter(loaded.embeddings, target, penalties)


def early_exit_drafters(model: Model, target: Runner, penalties: Penalties) -> list[EarlyExitDrafter]:
    """The target as its own draft; nothing where its layers cannot be told apart."""
    sample = model.tokenizer.encode(SAMPLE, add_special_tokens=False)
    with suppress(EngineError):
        return [EarlyExitDrafter(target, penalties, model.layers, _scoring(model), sample)]
    return []


def _scoring(model: Model) -> float:
    """What the output layer weighs, in layers."""
    if isinstance(model, PackedModel):
        output, tied = model.output.data.nbytes, model.described.tied
    else:
        config = model.model.config.get_text_config()
        output, tied = model.vocab_size * config.hidden_size * model.dtype.itemsize, config.tie_word_embeddings
    return output * model.layers / max(model.weight_bytes - output * (1 if tied else 2), 1)
