"""MXFP4: rounding of weights, and the layout of OpenAI's checkpoints of gpt-oss."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specchat.engine.kernels.packed_matrix import Format, MatrixArrays


def rounded_to_mxfp4(weight: Tensor) -> MatrixArrays:
    """A weight [N, K], rounded by the gguf package to the nearest 4-bit floats."""
    from gguf import GGMLQuantizationType, quants  # not where only the tests marked `gpu` run

    raw = quants.quantize(weight.float().numpy(), GGMLQuantizationType.MXFP4).reshape(len(weight), -1, 17)
    codes = np.concatenate([raw[..., 1:] & 15, raw[..., 1:] >> 4], axis=-1)
    return MatrixArrays(Format.MXFP4, codes.reshape(len(weight), -1), np.ascontiguousarray(raw[..., 0]))


def publish_in_mxfp4(folder: Path) -> Path:
    """Rewrite the experts of a gpt-oss model as blocks and scales; give the folder back."""
    file = folder / "model.safetensors"
    state = load_file(file)
    for name in [name for name in state if ".experts." in name and not name.endswith("bias")]:
        weight = state.pop(name).transpose(1, 2)
        arrays = rounded_to_mxfp4(weight.flatten(0, 1))
        scales = torch.from_numpy(arrays.scale).view(*weight.shape[:2], -1)
        pairs = torch.from_numpy(arrays.codes).view(*scales.shape, 16, 2)
        state |= {f"{name}_blocks": pairs[..., 0] | pairs[..., 1] << 4, f"{name}_scales": scales}
    save_file(state, file, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens"]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
