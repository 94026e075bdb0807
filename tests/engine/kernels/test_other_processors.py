"""The bits of this processor's kernels and of those for another family of processors, which runs under emulation."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from specchat.engine.kernels.build import BuildError, build, compile_sources, find_compiler, link

COMPILER, EMULATOR, SYSTEM = "aarch64-linux-gnu-g++", "qemu-aarch64", "/usr/aarch64-linux-gnu"


def digests(folder: Path, compiler: str, machine: str, *run: str) -> dict[str, str]:
    """What every variant gives, by its name."""
    folder.mkdir()
    program = folder / "digests"
    link(compile_sources(folder, compiler, machine, [Path(__file__).with_name("digests.cpp")]), program, compiler)
    out = subprocess.run([*run, str(program)], capture_output=True, text=True, check=True).stdout
    return dict(line.rsplit(" ", 1) for line in out.splitlines())


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which(COMPILER) and shutil.which(EMULATOR)), reason=f"needs {COMPILER} and {EMULATOR}")
def test_neon_gives_the_bits_of_this_processor(tmp_path: Path) -> None:
    here = digests(tmp_path / "here", str(find_compiler()), platform.machine())
    there = digests(tmp_path / "there", COMPILER, "aarch64", EMULATOR, "-L", SYSTEM)
    assert "NEON dot products" in there
    assert len(here) > 1
    assert len({*here.values(), *there.values()}) == 1


def test_a_build_that_fails_says_so_and_leaves_the_old_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "library.so"
    library.write_text("old")
    broken = tmp_path / "broken-compiler"
    broken.write_text("#!/bin/sh\necho 'api.cpp:1: error: out of ideas' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(BuildError, match=r"the kernels cannot be compiled \(api.cpp:1: error: out of ideas\)"):
        build(library)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match="need a C\\+\\+ compiler"):
        build(library)
    assert library.read_text() == "old"
