"""A GPU that is none: tensors that say they are on `cuda:0`, keep their numbers on the CPU, and mind their manners.

What mixes devices raises as CUDA would, and what makes the host wait for the device is noted: copies that are not
asynchronous, and operations that need a value or a shape on the host. Seen is what Python calls; nothing is captured,
and no kernel of CUDA runs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_iter, tree_map_only

from specchat.engine.backends import transformers_backend as cached_model
from specchat.engine.device import graphs
from specchat.engine.device.graphs import NEEDED, Graphs
from specchat.engine.drafters.block.reading import LoadedBlock
from specchat.engine.drafters.head.folder import LoadedHead
from specchat.engine.models.load import LoadedModel
from specchat.engine.models.packed import gpu_layers
from specchat.engine.research.tables import LoadedTables

GPU = torch.device("cuda:0")
CPU = torch.device("cpu")
_NEEDED_ON_THE_HOST = {"item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero", "masked_select"}
_INDEXING = {"__getitem__", "__setitem__"}


class OnGpu(Tensor):
    """A tensor of the pretended device."""


class PretendedGpu(TorchFunctionMode):
    """Runs everything on the CPU and keeps account."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        """What the host has waited for."""
        self.graphs = 0
        """Graphs captured."""
        self._capturing = False
        self._lent: list[Tensor] = []

    def captured(self, run: Callable[[], object]) -> Callable[[], object]:
        """`run`, which may not cross between the devices: a CUDA graph cannot. What it returns is there until the next
        graph runs, since graphs share their memory."""

        self.graphs += 1

        def replay() -> object:
            for tensor in self._lent:
                tensor.fill_(float("nan") if tensor.is_floating_point() else 0)
            self._capturing = True
            try:
                made = run()
            finally:
                self._capturing = False
            self._lent = [part for part in tree_iter(made) if isinstance(part, Tensor)]
            return made

        return replay

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = (resolve_name(func) or getattr(func, "__name__", "")).removesuffix(".__get__").rsplit(".", 1)[-1]
        tensors = [leaf for leaf in tree_iter((args, kwargs)) if isinstance(leaf, Tensor)]
        on_gpu = any(isinstance(tensor, OnGpu) for tensor in tensors)
        if name == "device" and on_gpu:
            return GPU
        if name == "is_cuda":
            return on_gpu
        if name == "_has_compatible_shallow_copy_type":  # of `nn.Module.to`
            return False
        if name in ("to", "cpu", "cuda", "copy_", "tensor", "pin_memory"):
            return self._move(name, func, args, kwargs)
        if on_gpu and name == "numpy":
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if on_gpu and (name in _NEEDED_ON_THE_HOST or (name in _INDEXING and _by_host_or_mask(args[1]))):
            self.waits.append(name)
        elif on_gpu and name not in _INDEXING:
            strangers = [tensor for tensor in tensors if not isinstance(tensor, OnGpu) and tensor.dim()]
            if strangers:
                raise RuntimeError(f"{name}: expected all tensors to be on the same device, but found cuda:0 and cpu")
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda":
            return _there(self._run(func, args, {**kwargs, "device": CPU}), GPU)
        return self._run(func, args, kwargs) if on_gpu else func(*args, **kwargs)

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call what works on the device."""
        return _ON_THE_CPU.get(func, func)(*args, **kwargs)

    def _move(self, name: str, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Copies between the devices, and what makes tensors of numbers."""
        if name == "pin_memory":
            return args[0]
        asynchronous = kwargs.pop("non_blocking", False)
        if name == "tensor":
            place = torch.device(kwargs.pop("device", None) or CPU)
            made = func(*args, **kwargs)
            return self._crossed(made, place, asynchronous)
        if name == "copy_":
            to, source = args[:2]
            if isinstance(to, OnGpu) is not isinstance(source, OnGpu):
                self._note(isinstance(to, OnGpu), asynchronous or args[2:3] == (True,))
            return self._run(func, (to, _there(source, _place(to))), {})
        source, asked = args[0], [*args[1:], kwargs.get("device"), kwargs.get("dtype")]
        places = [torch.device(x) for x in asked if isinstance(x, torch.device | str)]
        likes = [_place(x) for x in asked if isinstance(x, Tensor)]
        place = {"cpu": [CPU], "cuda": [GPU]}.get(name, [*places, *likes, _place(source)])[0]
        dtypes = [x if isinstance(x, torch.dtype) else x.dtype for x in asked if isinstance(x, torch.dtype | Tensor)]
        plain = source.as_subclass(Tensor)
        made = plain
        if dtypes:
            cast = {"dtype": dtypes[0], "copy": kwargs.get("copy", False)}
            made = self._run(plain.to, (), cast) if isinstance(source, OnGpu) else plain.to(**cast)
        return self._crossed(source if made is plain else _there(made, _place(source)), place, asynchronous)

    def _crossed(self, tensor: Tensor, place: torch.device, asynchronous: bool) -> Tensor:
        if (place.type == "cuda") is isinstance(tensor, OnGpu):
            return tensor
        self._note(place.type == "cuda", asynchronous)
        return _there(tensor.as_subclass(Tensor).clone(), place)

    def _note(self, to_device: bool, asynchronous: bool) -> None:
        if self._capturing:
            raise RuntimeError("operation not permitted when stream is capturing")
        if not asynchronous:
            self.waits.append("to the device" if to_device else "to the host")


def to_int4_layout(halves: Tensor, tiles: int) -> Tensor:
    """`_convert_weight_to_int4pack` as written for CUDA: int32 [N/8, K/(16 tiles), 32, tiles/2] of 8 codes each, from
    two codes a byte, the one of the even column higher."""
    row, column = _int4_places(tiles)
    codes = torch.stack((halves >> 4, halves & 15), dim=-1).flatten(-2).long()
    blocks = codes.view(len(codes) // 8, 8, -1, 16 * tiles).transpose(1, 2)
    return (blocks[:, :, row, column] << 4 * torch.arange(8)).sum(-1).to(torch.int32)


def int4_product(x: Tensor, packed: Tensor, group: int, scales: Tensor) -> Tensor:
    """`_weight_int4pack_mm` of that layout."""
    blocks, across, _, pairs = packed.shape
    codes = torch.empty(blocks, across, 8, 32 * pairs, device=packed.device)
    row, column = _int4_places(2 * pairs)
    codes[:, :, row, column] = ((packed[..., None] >> 4 * torch.arange(8)) & 15).float()
    rows = codes.transpose(1, 2).reshape(blocks * 8, -1)
    scale, zero = (scales[..., i].T.float().repeat_interleave(group, 1) for i in (0, 1))
    return (x.float() @ ((rows - 8) * scale + zero).T).to(torch.bfloat16)


def _int4_places(tiles: int) -> tuple[Tensor, Tensor]:
    """Row and column in a block of 8 x 16·tiles of each code, by thread, pair of tiles and place in the int32."""
    thread, pair, place = torch.meshgrid(torch.arange(32), torch.arange(tiles // 2), torch.arange(8), indexing="ij")
    byte = 16 * pair + thread % 4 + 4 * (place % 2) + 8 * (place // 2 % 2)
    return thread // 4, 2 * byte + place // 4


_ON_THE_CPU = {torch._convert_weight_to_int4pack: to_int4_layout, torch._weight_int4pack_mm: int4_product}
"""Operations that have another name, or other arguments, there."""


def _by_host_or_mask(index: Any) -> bool:
    """Whether tensors are indexed by a mask, or by numbers that lie on the host."""
    parts = [part for part in (index if isinstance(index, tuple) else (index,)) if isinstance(part, Tensor | list)]
    return any(isinstance(part, list) or part.dtype is torch.bool or not isinstance(part, OnGpu) for part in parts)


def _place(tensor: Tensor) -> torch.device:
    return GPU if isinstance(tensor, OnGpu) else CPU


def _there(made: Any, place: torch.device) -> Any:
    """Tensors as those of a device."""
    kind = OnGpu if place.type == "cuda" else Tensor
    return tree_map_only(Tensor, lambda tensor: tensor.as_subclass(kind), made)


def parts_to_gpu(*parts: LoadedModel | LoadedHead | LoadedBlock | LoadedTables | None, real: bool = False) -> list[Any]:
    """Models and drafters, moved there, or to the real GPU; tables move when they are made ready."""
    moved: list[Any] = []
    for part in parts:
        network = next((getattr(part, name) for name in ("model", "head", "network") if hasattr(part, name)), None)
        if network is not None:
            network.to("cuda") if real else to_gpu(network)
        if isinstance(part, LoadedHead | LoadedBlock):
            known = part.vocabulary
            part = replace(part, vocabulary=known.to("cuda") if real else known.as_subclass(OnGpu))
        moved.append(part)
    return moved


def to_gpu(network: nn.Module) -> None:
    """Move a network there."""
    for module in network.modules():
        for parts in (module._parameters, module._buffers):
            for name, part in parts.items():
                if part is not None:
                    moved = part.data.as_subclass(OnGpu)
                    parts[name] = nn.Parameter(moved, requires_grad=False) if parts is module._parameters else moved


class _Event:
    """Times do not matter here, only that none is read before the stream has reached the event."""

    waiting: ClassVar[set[_Event]] = set()

    def __init__(self, **_: object) -> None: ...

    def record(self) -> None:
        self.waiting.add(self)

    def synchronize(self) -> None:
        self.waiting.clear()

    def elapsed_time(self, other: _Event) -> float:
        if other in self.waiting:
            raise RuntimeError("CUDA error: device not ready")
        return 1.0


@contextmanager
def pretended_gpu(monkeypatch: pytest.MonkeyPatch, *, capture: bool = False) -> Iterator[PretendedGpu]:
    """The device, with what the engine asks of `torch.cuda`.

    Args:
        monkeypatch: puts it in place.
        capture: whether graphs are made while warming up, which takes long; else when they are needed.
    """
    stand_ins: dict[str, Callable[..., object] | type] = {
        "is_available": lambda: True, "current_device": lambda: 0, "device_count": lambda: 1,
        "is_bf16_supported": lambda **_: True, "mem_get_info": lambda *_: (1 << 28, 1 << 28),
        **dict.fromkeys(("max_memory_allocated", "memory_allocated", "memory_reserved"), lambda *_: 0),
        "get_device_name": lambda *_: "pretended",
        "get_device_properties": lambda *_: SimpleNamespace(uuid="pretended"), "synchronize": lambda *_: None,
        "set_device": lambda *_: None, "graph_pool_handle": lambda: (0, 0), "Event": _Event,
    }  # fmt: skip
    for name, value in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, value)
    gpu = PretendedGpu()
    monkeypatch.setattr(cached_model, "compile_layers", lambda _: False)
    monkeypatch.setattr(gpu_layers, "compiled", lambda: gpu_layers.dequantized)
    monkeypatch.setattr("specchat.engine.device.gpu.has_triton", lambda _: False)
    if not capture:
        plan = Graphs.plan
        monkeypatch.setattr(Graphs, "plan", lambda graphs, *what: plan(graphs, *what) if what[0] == NEEDED else None)
    monkeypatch.setattr(graphs, "warm", lambda *_: None)
    monkeypatch.setattr(graphs, "capture", lambda run, *_: gpu.captured(run))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # what runs here is tiny: threads that wait for each other cost far more than they save
    try:
        with gpu:
            yield gpu
    finally:
        torch.set_num_threads(threads)
        gc.collect()  # engines are in cycles, each with the memory of its caches
