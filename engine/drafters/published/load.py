"""Loading of a published head for a target: sizes, tensors and vocabulary are checked before anything is drafted."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from specchat.engine.drafters.head.folder import LoadedHead
from specchat.engine.drafters.head.layer import LayeredHead, pack_head
from specchat.engine.drafters.published import eagle, medusa
from specchat.engine.drafters.published.find import CONFIG, MEDUSA
from specchat.engine.drafters.published.weights import head_errors, read_tensors, require, without_nulls
from specchat.engine.models.checkpoint import display_name, read_json
from specchat.engine.models.families import families
from specchat.engine.models.packed.load import Model

TARGET, FINGERPRINT = "base_model_name_or_path", "target_fingerprint"
"""Keys of config.json: the target's name, as Medusa's authors state it, and ours, which tells its weights apart."""
_IGNORED = ("verifier_lm_head.weight", "verifier_norm.weight")
"""Tensors of the target, which are for training."""


def load_published(folder: Path, target: Model) -> LoadedHead:
    """Load a published head for a target.

    Raises:
        EngineError: it does not fit the target, is of an unknown kind, or lacks something.
    """
    kind = read_json(folder / CONFIG).get("model_type")
    if any(kind in family.assistants for family in families()):
        from specchat.engine.drafters.published.assistant import load_assistant  # imports transformers

        return load_assistant(folder, target)
    head, vocabulary = read_published(folder, target)
    size = pack_head(head, target)
    return LoadedHead(head, vocabulary.to(target.device), display_name(folder), size)


def read_published(folder: Path, target: Model) -> tuple[LayeredHead, Tensor]:
    """A published head as it is stored: its network on the CPU, and its vocabulary [V'], int64.

    Raises:
        EngineError: it does not fit the target, is of an unknown kind, or lacks something.
    """
    config = without_nulls(read_json(folder / CONFIG))
    read = medusa.read_heads if MEDUSA in config else eagle.read_head
    with head_errors(folder):
        tensors = {name: tensor for name, tensor in read_tensors(folder).items() if name not in _IGNORED}
        require(
            config.get(FINGERPRINT, target.fingerprint) == target.fingerprint,
            f"was made for {config.get(TARGET, 'another target')}, with other weights than {target.name} has: choose "
            "the head of this target",
        )
        return read(config, tensors, target)
