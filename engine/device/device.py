"""The device a model runs on: choosing it, its memory, bfloat16, copies to it, a stopwatch, padding of passes."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from itertools import pairwise

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from specchat.engine.errors import EngineError, check, first_line
from specchat.engine.progress import size_text

try:
    import psutil
except ImportError:  # the engine also runs where only torch, transformers and safetensors are installed
    psutil = None


def pick_device(name: str) -> torch.device:
    """The device for `auto` (the GPU, otherwise the CPU), `cpu`, `cuda`, or a numbered GPU such as `cuda:1`.

    Raises:
        EngineError: the name is unknown, this machine has no such device, or it cannot be used.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise EngineError(f"device {name!r} is not known: choose auto, cpu, cuda or cuda:N") from error
    if device.type == "cpu":
        return torch.device("cpu")
    check(device.type == "cuda", f"device {name!r} is not supported: choose auto, cpu, cuda or cuda:N")
    if not torch.cuda.is_available():
        raise EngineError(f"device {name!r} cannot be used because {_why_no_gpu()}: choose auto or cpu")
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise EngineError(f"device {name!r} does not exist: this machine has cuda:0 to cuda:{count - 1}")
    device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    try:
        torch.ones(1, device=device).add_(1)
    except RuntimeError as error:  # another process uses it alone, its memory is full, or no kernel is made for it
        raise EngineError(f"{device} cannot be used ({first_line(error)}): free it, or choose --device cpu") from error
    return device


def unused_gpu() -> str | None:
    """Notice that this machine has a driver of NVIDIA and torch cannot use its GPU; None otherwise."""
    if torch.cuda.is_available() or shutil.which("nvidia-smi") is None:
        return None
    return f"the GPU is not used because {_why_no_gpu()}: models run on the CPU"


def _why_no_gpu() -> str:
    if torch.version.cuda is None:
        return "this torch is built without CUDA"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return f"torch finds no CUDA GPU ({first_line(error).split('. ')[0]})"
    return "torch finds no CUDA GPU"


def is_shortage(error: BaseException) -> bool:
    """Whether memory was lacking: CUDA's libraries report it in errors of their own."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "alloc_failed" in text


def is_device_error(error: BaseException) -> bool:
    """Whether the GPU has failed; it then fails in all that this process asks of it."""
    return isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error)


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
        on_gpu = device.type == "cuda"
        where, elsewhere = ("the GPU", ", --quantize q4 or --device cpu") if on_gpu else ("this machine", "")
        raise EngineError(
            f"{purpose} needs {size_text(needed)} of memory and {where} has {size_text(free)} free, "
            f"{size_text(needed - free)} too little: close other programs, or choose a smaller model{elsewhere}"
        )


def available_memory(device: torch.device) -> int | None:
    """Bytes that can be allocated on the device now; None on a CPU without psutil."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # held by torch's allocator
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    return int(psutil.virtual_memory().available) if psutil else None


def held_memory(device: torch.device) -> int | None:
    """Bytes this process holds: peak of allocated tensors on a GPU, resident memory on a CPU; None if not known.

    On a CPU, counts the process's own pages and mapped safetensors files. Pages of libraries are left out: how many
    of them have been touched says nothing of what a model takes.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if psutil is None or not psutil.LINUX:  # elsewhere psutil lists mapped files only, or nothing
        return None
    maps = psutil.Process().memory_maps()
    ours = (".safetensors", ".packed")
    return sum(int(each.rss) for each in maps if each.path.startswith("[") or each.path.endswith(ours))


def trim_heap() -> None:
    """Return freed heap pages to the system, which glibc keeps after loading (for a tokenizer a tenth of a small
    model's weights)."""
    if psutil:
        with suppress(AttributeError):  # a C library without malloc_trim
            psutil.heap_trim()


def to_device(numbers: ArrayLike | Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Tensor of the numbers on the device; without `dtype` it has theirs.

    `torch.tensor(..., device=...)` would wait for the whole stream. An asynchronous copy from pageable memory is staged
    before the call returns, so the numbers may be freed at once (CUDA runtime API, "API synchronization behavior").
    """
    return torch.as_tensor(numbers, dtype=dtype).to(device, non_blocking=True)


class Stopwatch:
    """Measures the time between marks without synchronising at each mark.

    On CUDA a mark is an event in the stream, read after a synchronisation that is needed anyway; elsewhere it is the
    host's clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.start()

    def start(self) -> None:
        """Begin the first interval; earlier ones are forgotten."""
        self._times: list[float] = []
        self._events: list[torch.cuda.Event] = []
        self.mark()

    def mark(self) -> None:
        """End an interval and begin the next."""
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._events.append(event)
        else:
            self._times.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Intervals so far, in seconds; waits until the device has passed the last mark."""
        if self._cuda:
            self._events[-1].synchronize()
            return [a.elapsed_time(b) / 1000 for a, b in pairwise(self._events)]
        return [b - a for a, b in pairwise(self._times)]


CAPTURED = (1, 5, 9, 17)
"""Widths of passes that become CUDA graphs: a GPU reads the weights once for 5 tokens as for 1."""
_LONGEST_ROUND = 17


def captured_width(length: int) -> int:
    """Padded width of a pass that becomes a CUDA graph: the next of `CAPTURED`, which the longest round fills."""
    return next(width for width in CAPTURED if width >= length)


def padded_width(length: int) -> int:
    """Padded width of other passes: 1, 5, 9, 13, 17 (5 tokens cost about as much as 1), then multiples of 32.

    On a CPU oneDNN generates and keeps machine code for every new shape: for the default model 3 MB and a third of the
    time of a pass.
    """
    step, first = (4, 1) if length <= _LONGEST_ROUND else (32, 0)
    return first - (first - length) // step * step
