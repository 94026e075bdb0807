"""The device a model runs on: choosing it, checking its memory, whether bfloat16 is fast there."""

from __future__ import annotations

import torch

from specchat.engine.device.memory import available_memory
from specchat.engine.errors import EngineError
from specchat.engine.progress import size_text


def pick_device(name: str) -> torch.device:
    """The device for `auto` (the GPU, otherwise the CPU), `cpu`, `cuda`, or a numbered GPU such as `cuda:1`.

    Raises:
        EngineError: the name is unknown, or this machine has no such device.
    """
    if name == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise EngineError(f"device {name!r} is not known: choose auto, cpu, cuda or cuda:N") from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise EngineError(f"device {name!r} is not supported: choose auto, cpu, cuda or cuda:N")
    if not torch.cuda.is_available():
        reason = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no CUDA GPU"
        raise EngineError(f"device {name!r} cannot be used because {reason}: choose auto or cpu")
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise EngineError(f"device {name!r} does not exist: this machine has cuda:0 to cuda:{count - 1}")
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)


def computes_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 is at least as fast as float32 on the device.

    On a CPU this means that oneDNN has bfloat16 kernels: x86 with AVX-512 (even without bf16 instructions: decoding is
    bound by reading the weights, which are half as many bytes), ARM with bf16 instructions.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def require_memory(device: torch.device, needed: int, purpose: str) -> None:
    """Check that `needed` bytes are free on the device; passes where that is not known.

    Raises:
        EngineError: fewer bytes are free.
    """
    free = available_memory(device)
    if free is not None and free < needed:
        where = "the GPU" if device.type == "cuda" else "this machine"
        raise EngineError(
            f"{purpose} needs {size_text(needed)} of memory and {where} has {size_text(free)} free: "
            "close other programs, or choose a smaller model"
        )
