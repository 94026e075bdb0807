"""Medusa heads of our own, in their authors' layout: what loads published ones loads them too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specchat.engine.drafters.head.medusa import MedusaHeads
from specchat.engine.drafters.published.layout import SHARED_OUTPUT
from specchat.engine.drafters.published.load import TO_TARGET
from specchat.engine.files import make_folder, replacing
from specchat.engine.models.disk import disk_errors

WEIGHTS, CONFIG = "medusa_lm_head.safetensors", "config.json"


def save_medusa(folder: Path, network: MedusaHeads, vocabulary: Tensor, about: Mapping[str, Any]) -> None:
    """Write heads that share the target's output layer; config.json comes last, so that a folder with it is complete.

    Args:
        folder: made if it is not there.
        network: saved in bfloat16.
        vocabulary: [V'], int64: the tokens that they draft.
        about: what else config.json says.

    Raises:
        EngineError: the disk is full, or not to be written.
    """
    weights = {
        name: weight.detach().to(torch.bfloat16).contiguous().cpu()
        for name, weight in network.heads.state_dict().items()
    }
    shift = vocabulary.cpu() - torch.arange(len(vocabulary))
    config = {
        "medusa_num_heads": len(network.heads),
        "medusa_num_layers": network.blocks,
        SHARED_OUTPUT: True,
        "draft_vocab_size": len(vocabulary),
        **about,
    }
    with disk_errors(folder, "saving the Medusa heads"):
        make_folder(folder)
        with replacing(folder / WEIGHTS) as part:
            save_file({**weights, TO_TARGET: shift}, part)
        with replacing(folder / CONFIG) as part:
            part.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
