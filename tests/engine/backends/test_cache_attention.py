"""The Triton kernel for attention over the cache by slot."""

from collections.abc import Callable

import pytest
import torch

from specchat.engine.backends.cache_attention import COUNTERS, CacheRows, attend
from specchat.engine.decoding.tree import Tree, chain, tree_of
from specchat.engine.decoding.tree_mask import TreeMask
from tests.engine.backends.triton_kernels import CAPABILITIES, DEVICES, DTYPES, NEEDS_COMPILER, shared_memory

SLOTS, COLUMNS = 5, 600
CASES = {
    "one row, one token": ([2], [500], chain(0), 128, 128, 0),
    "ragged": ([3, 0, 2], [7, 599 - 17, 300], chain(16), 64, 64, 0),
    "all slots": ([0, 1, 2, 3, 4], [500, 400, 300, 200, 100], chain(0), 16, 16, 0),
    "a tree": ([4, 1], [333, 64], tree_of(3), 64, 64, 0),
    "values of another size": ([4], [333], chain(4), 96, 80, 0),
    "a window": ([4, 0], [333, 20], tree_of(3).first(8), 32, 32, 40),
    "the first tokens": ([1], [0], chain(4), 64, 64, 0),
    "large heads": ([1, 2], [130, 129], chain(8), 256, 256, 0),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ratio", [1, 3, 4, 7, 8])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@torch.inference_mode()
def test_the_kernel_computes_what_torch_computes(
    case: tuple[list[int], list[int], Tree, int, int, int], ratio: int, device: str
) -> None:
    compare(case, ratio, torch.device(device), torch.float32, 2e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)])
@torch.inference_mode()
def test_it_computes_with_sixteen_bits(dtype: torch.dtype, device: str) -> None:
    if device == "cpu" and dtype is torch.bfloat16:
        pytest.skip("Triton's interpreter has no products of bfloat16")
    for case in CASES.values():
        compare(case, 4, torch.device(device), dtype, 2e-3 if dtype is torch.float16 else 2e-2)


@pytest.mark.parametrize("device", DEVICES)
@torch.inference_mode()
def test_padding_that_a_window_shows_nothing_gives_numbers(device: str) -> None:
    (query, keys, values, visible), rows = arguments([4, 0], [333, 20], chain(0), 4, 32, 32, 40)
    visible[1], rows.starts[1] = 0, COLUMNS - 1
    kernel = launched() if device == "cpu" else attend
    given = (each.to(device) for each in (query, keys, values, visible, *rows))
    assert kernel(*given, 32**-0.5, 40).isfinite().all()


@NEEDS_COMPILER
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_kernel_compiles_without_a_gpu(dtype: str, capability: int) -> None:
    from specchat.engine.backends.cache_attention_kernel import _attend

    fixed = {"length": 5, "folded": 4, "size": 128, "size_out": 128, "padded": 128, "padded_out": 128, "tile": 16}
    fixed |= {"step": 32, "tiles": 2, "early": capability >= 90}
    kinds = {**dict.fromkeys(("query", "keys", "values", "out"), f"*{dtype}"), "visible": "*u8", "sums": "*fp32"}
    kinds |= {"slots": "*i64", "starts": "*i64", "counters": "*i32", "scale": "fp32"}
    shared = shared_memory(_attend, kinds, fixed, capability, num_warps=4, num_stages=2)
    assert shared < (99 if capability > 75 else 64) * 1024


def compare(
    case: tuple[list[int], list[int], Tree, int, int, int],
    ratio: int,
    device: torch.device,
    dtype: torch.dtype,
    gap: float,
) -> None:
    """The kernel's results against torch on the CPU; twice, since the first call must restore the counters."""
    slots, starts, tree, size, size_out, window = case
    (query, keys, values, visible), rows = arguments(slots, starts, tree, ratio, size, size_out, window)
    query, keys, values = query.to(dtype), keys.to(dtype), values.to(dtype)
    expected = attend(*(each.float() for each in (query, keys, values)), visible, *rows, size**-0.5, window)
    counters = rows.counters.to(device)
    kernel = launched() if device.type == "cpu" else attend
    given = [each.to(device) for each in (query, keys, values, visible, *rows[:2])]
    for _ in range(2):
        found = kernel(*given, counters, size**-0.5, window)
        torch.testing.assert_close(found.cpu().float(), expected, rtol=gap, atol=gap)
    assert not counters.any()


def launched() -> Callable[..., torch.Tensor]:
    """The kernel as Triton's interpreter runs it, for a device that computes 132 blocks at once."""
    from specchat.engine.backends.cache_attention_kernel import launch

    def run(*given: torch.Tensor | float) -> torch.Tensor:
        return launch(*given, processors=132)  # type: ignore[arg-type]

    return run


def arguments(
    slots: list[int], starts: list[int], tree: Tree, ratio: int, size: int, size_out: int, window: int
) -> tuple[tuple[torch.Tensor, ...], CacheRows]:
    """Random queries and a random cache, and what is visible as a pass has it."""
    width, groups, draw = len(tree) + 1, 2, torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw)

    query = drawn(len(slots), width, groups * ratio, size).transpose(1, 2)
    keys, values = drawn(SLOTS, groups, COLUMNS, size), drawn(SLOTS, groups, COLUMNS, size_out)
    mask, first = TreeMask.of([tree] * len(slots), width, torch.device("cpu")), torch.tensor(starts)
    seen = torch.arange(max(starts) + width)
    visible = mask.visibility(first[:, None] + torch.arange(width), seen, window or None).view(torch.uint8)
    return (query, keys, values, visible), CacheRows(
        torch.tensor(slots), first, torch.zeros(COUNTERS, dtype=torch.int32)
    )
