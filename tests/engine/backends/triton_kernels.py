"""Ways of testing a Triton kernel: on a GPU, in Triton's interpreter, or compiled only.

The interpreter needs no GPU, but Triton, which comes with torch for CUDA:
TRITON_INTERPRET=1 python -m scripts.test_torch 2.11 -- tests/engine/backends/test_cache_attention.py
"""

import os
from importlib.util import find_spec
from typing import Any

import pytest

INTERPRETED = bool(find_spec("triton")) and os.environ.get("TRITON_INTERPRET") == "1"
DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(not INTERPRETED, reason="needs Triton's interpreter")),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
NEEDS_COMPILER = pytest.mark.skipif(find_spec("triton") is None or INTERPRETED, reason="needs Triton's compiler")
DTYPES, CAPABILITIES = ("bf16", "fp16", "fp32"), (75, 80, 90, 120)
"""What a kernel has to compile for: a Turing card and later ones."""


def shared_memory(kernel: Any, kinds: dict[str, str], fixed: dict[str, int], capability: int, **options: int) -> int:
    """Bytes of shared memory of a kernel that is compiled for a GPU of this capability; other arguments are i32."""
    from triton import compile as translated
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: "constexpr" if name in fixed else kinds.get(name, "i32") for name in kernel.arg_names}
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(name),): fixed[name] for name in fixed})
    return int(translated(source, GPUTarget("cuda", capability, 32), options).metadata.shared)
