"""Runs the engine's tests with another version of torch: python -m scripts.test_torch 2.11 [FOLDER] [-- OPTIONS].

OPTIONS are options of pytest. FOLDER keeps the environment for the next run; without it, a temporary one is used. Some
gigabytes are downloaded: the versions on the package index are built for CUDA, and run on the CPU too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDED = (
    *("transformers>=5.17,<6", "safetensors", "tokenizers", "gguf", "accelerate", "filelock", "psutil", "rich"),
    "numpy<2.3",  # Triton's interpreter, which TRITON_INTERPRET=1 switches on, takes arrays for numbers
    *("pytest>=8.4,<9", "pytest-asyncio", "hypothesis", "jsonschema"),
)
"""What the engine and its tests import, besides torch."""


def main() -> int:
    """Make the environment and run the tests; returns pytest's exit code."""
    given = sys.argv[1:]
    given, options = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    if not 1 <= len(given) <= 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as temporary:
        python = _environment(Path(given[1] if len(given) > 1 else temporary), given[0])
        tests = options or ["tests/engine", "-m", "not slow and not model"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
        return subprocess.run([python, "-m", "pytest", "-q", *tests], cwd=ROOT, env=environment, check=False).returncode


def _environment(folder: Path, version: str) -> str:
    """Python of an environment with this torch, which is made if it is not there."""
    python = str(folder / "bin" / "python")
    if not Path(python).exists():
        venv.create(folder, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "-q", f"torch=={version}.*", *NEEDED], check=True)
    return python


if __name__ == "__main__":
    sys.exit(main())
