"""Where a model runs: the device, its memory, whether bfloat16 is fast there."""

from __future__ import annotations

import torch

from engine.errors import EngineError
from engine.progress import size_text


def pick_device(name: str) -> torch.device:
    """The device for `auto` (the GPU if there is one), `cpu`, `cuda`, or a certain GPU such as `cuda:1`.

    Raises:
        EngineError: the name means nothing, or this machine has no such device.
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
    """Whether bfloat16 is at least as fast as float32 there.

    On a CPU that is where oneDNN has bfloat16 kernels: x86 from AVX-512 on (also without its bf16 instructions: one
    token at a time is bound by reading the weights, and these are half as many bytes), ARM with bf16 instructions.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def available_memory(device: torch.device) -> int | None:
    """Bytes that can be allocated on the device now, or None where that cannot be known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        import psutil  # type: ignore[import-untyped]
    except ImportError:
        return _available_by_proc()
    return int(psutil.virtual_memory().available)


def require_memory(device: torch.device, needed: int, purpose: str) -> None:
    """Check that `needed` bytes can be had on the device.

    Raises:
        EngineError: they cannot.
    """
    free = available_memory(device)
    if free is not None and free < needed:
        where = "the GPU" if device.type == "cuda" else "this machine"
        raise EngineError(
            f"{purpose} needs {size_text(needed)} of memory and {where} has {size_text(free)} free: "
            "close other programs, or choose a smaller model"
        )


def _available_by_proc() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None
