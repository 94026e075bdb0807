"""Compiles the kernels with the system's C++ compiler into one shared library for all processors of a family."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).parent / "source"
LIBRARY = Path(__file__).parent / (
    "libspecchat_kernels.dylib" if sys.platform == "darwin" else "libspecchat_kernels.so"
)
# No contraction of products and sums except where the source uses fma: every variant rounds alike.
_FLAGS = [
    *("-O3", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-pthread"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    *("-Wall", "-Wextra", "-Wno-uninitialized", "-Wno-maybe-uninitialized"),
]
_X86 = ["-mavx2", "-mfma", "-mf16c", "-mprfchw"]
"""A processor without PREFETCHW ignores it."""
_AVX512 = [*_X86, *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mprefer-vector-width=512")]
_VARIANT_FLAGS = {
    "x86_64": {"variant_avx2": _X86, "variant_avx512": _AVX512, "variant_amx": _AVX512},
    "aarch64": {"variant_neon": ["-march=armv8.2-a+dotprod"]},
}
_AMX = ["-mamx-tile", "-mamx-int8"]
"""For `variant_amx`, which is left out if the compiler or its assembler does not support them."""
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


class BuildError(Exception):
    """The kernels cannot be compiled; the message is one sentence."""


def find_compiler() -> str | None:
    """The C++ compiler of $CXX, or the first that is installed."""
    named = os.environ.get("CXX")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)


def build(library: Path = LIBRARY) -> Path:
    """Compile the kernels for this machine with the system's compiler.

    Args:
        library: path of the shared library; an existing one is replaced after success.

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    compiler = find_compiler()
    if compiler is None:
        raise BuildError("the kernels need a C++ compiler (install g++ or clang)")
    with tempfile.TemporaryDirectory() as name:
        objects = compile_sources(Path(name), compiler, platform.machine())
        linked = Path(name) / library.name
        link(objects, linked, compiler, "-shared")
        fresh = library.with_name(f"{library.name}.{os.getpid()}")
        shutil.copy2(linked, fresh)
        fresh.replace(library)
    return library


def compile_sources(
    folder: Path, compiler: str, machine: str, more: Sequence[Path] = (), options: Sequence[str] = ()
) -> list[Path]:
    """Compile the kernels and `more` sources into object files in `folder`."""
    return [
        compile_source(source, folder, compiler, machine, options) for source in [*sorted(SOURCE.glob("*.cpp")), *more]
    ]


def compile_source(source: Path, folder: Path, compiler: str, machine: str, options: Sequence[str] = ()) -> Path:
    """Compile one source into an object file in `folder`, for the instruction set of its variant."""
    machine = _MACHINES.get(machine.lower(), machine)
    flags = [*_FLAGS, *_VARIANT_FLAGS.get(machine, {}).get(source.stem, [])]
    if source.stem == "variant_amx" and machine == "x86_64" and knows_amx(compiler):
        flags += _AMX
    made = folder / f"{source.stem}.o"
    _run([compiler, *flags, *options, f"-I{SOURCE}", "-c", str(source), "-o", str(made)])
    return made


def knows_amx(compiler: str) -> bool:
    """Whether the compiler and its assembler support the AMX instructions."""
    command = [compiler, *_AMX, "-x", "c++", "-c", "-", "-o", os.devnull]
    source = "#include <immintrin.h>\nvoid release() { _tile_release(); }\n"
    return not subprocess.run(command, input=source, capture_output=True, text=True, check=False).returncode


def link(objects: Sequence[Path], out: Path, compiler: str, *flags: str) -> None:
    """Link object files to a library or a program."""
    _run([compiler, *flags, "-pthread", *map(str, objects), "-o", str(out)])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        error = next((line for line in lines if "error" in line), lines[-1] if lines else "no message")
        raise BuildError(f"the kernels cannot be compiled ({error.strip()})")
    if done.stderr:
        sys.stderr.write(done.stderr)


if __name__ == "__main__":
    print(build())
