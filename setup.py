"""Installs the folders of this repository as packages: `app` as `specchat.app`, `engine`, `assets`; builds the kernels.

The kernels are optional: without a C++ compiler the installation continues, and specchat says what is missing.
"""

import runpy
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

FOLDERS = ("app", "engine")
KERNELS = Path("engine", "kernels")


class BuildKernels(build_ext):
    """Builds the kernels as their own build program does; a failure is one line, since the extension is optional."""

    def build_extension(self, ext: Extension) -> None:
        program = runpy.run_path(str(KERNELS / "build.py"))
        library = Path(self.get_ext_fullpath(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        try:
            program["build"](library)
        except program["BuildError"] as error:
            print(f"specchat: {error}; continuing without them, slower", file=sys.stderr)
            raise CompileError(str(error)) from error

    def get_ext_filename(self, fullname: str) -> str:
        library: Path = runpy.run_path(str(KERNELS / "build.py"))["LIBRARY"]
        return str(Path(*fullname.split(".")[:-1], library.name))


setup(
    packages=[
        "specchat",
        "specchat.assets",
        *(f"specchat.{package}" for folder in FOLDERS for package in find_packages(include=[folder, f"{folder}.*"])),
    ],
    package_dir={
        "specchat": "scripts/specchat",
        "specchat.assets": "assets",
        **{f"specchat.{folder}": folder for folder in FOLDERS},
    },
    ext_modules=[
        Extension(
            "specchat.engine.kernels.library_file", [str(file) for file in KERNELS.glob("source/*.cpp")], optional=True
        )
    ],
    cmdclass={"build_ext": BuildKernels},
    data_files=[
        ("share/man/man1", ["assets/shell/specchat.1"]),
        ("share/bash-completion/completions", ["assets/shell/specchat"]),
        ("share/zsh/site-functions", ["assets/shell/_specchat"]),
        ("share/fish/vendor_completions.d", ["assets/shell/specchat.fish"]),
    ],
)
