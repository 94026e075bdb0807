"""Makes a release, all but publishing it: checks, builds the sdist and from it the wheel, tries the wheel, writes sums.

Run from a clean clone: python -m scripts.release VERSION
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDED = (
    "app/chat/web_page/page.js",
    "app/ui/styles/chat.tcss",
    "assets/heads/smollm2-135m/head.safetensors",
    "assets/prompts/chat.json",
    "assets/trace.schema.json",
    "engine/kernels/source/decoder.cpp",
    "engine/py.typed",
)
"""Files without which an installation does not work as it says."""


def main() -> None:
    """Check, build, try."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    complaints = check(sys.argv[1])
    if complaints:
        sys.exit("\n".join(complaints))
    out = ROOT / "dist" / sys.argv[1]
    if out.exists():
        sys.exit(f"{out} is there already: remove it first")
    out.mkdir(parents=True)
    built = [sdist(ROOT, out)]
    built.append(wheel(built[0], out))
    try_out(built[1])
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in built]
    (out / "SHA256SUMS").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    print(f"\nto publish: git tag v{sys.argv[1]}, push the tag, and upload {out}")


def check(version: str) -> list[str]:
    """What speaks against a release of this version."""
    complaints = []
    if _said("git", "status", "--porcelain"):
        complaints.append("the working tree has changes: commit them first")
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if declared != version:
        complaints.append(f"pyproject.toml says version {declared}: set it to {version}")
    if f"\n## {version}" not in (ROOT / "CHANGELOG.md").read_text():
        complaints.append(f"CHANGELOG.md has no section {version}: rename the unreleased one")
    if _said("git", "tag", "--list", f"v{version}"):
        complaints.append(f"there is a tag v{version} already: choose a new version")
    return complaints


def sdist(source: Path, out: Path) -> Path:
    """Build the source distribution.

    Raises:
        SystemExit: a file is missing in it.
    """
    build = "import sys; from setuptools import build_meta as b; sys.argv[0] = 'setup.py'; b.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(out)], cwd=source, check=True, stdout=subprocess.DEVNULL)
    (made,) = out.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    _complete(made, names)
    return made


def wheel(source: Path, out: Path) -> Path:
    """Build a wheel from a source distribution.

    Raises:
        SystemExit: a file is missing in it.
    """
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out), str(source)]
    subprocess.run(build, check=True)
    (made,) = out.glob("*.whl")
    with zipfile.ZipFile(made) as archive:
        names = {name.removeprefix("specchat/") for name in archive.namelist()}
    _complete(made, names)
    return made


def try_out(made: Path) -> None:
    """Install a wheel in a new environment with the dependencies of this one, and start its commands."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "environment"
        venv.create(home, with_pip=False, system_site_packages=False)
        python = home / "bin" / "python"
        install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", str(made)]
        subprocess.run(install, check=True)
        own = next((home / "lib").glob("python*/site-packages"))
        (own / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        for arguments in (["--version"], ["serve", "--help"], ["models", "list"]):
            command = [str(home / "bin" / "specchat"), *arguments]
            environment["SPECCHAT_HOME"] = str(Path(folder) / "home")
            subprocess.run(command, check=True, cwd=folder, env=environment, stdout=subprocess.DEVNULL)


def _complete(made: Path, names: set[str]) -> None:
    missing = [name for name in NEEDED if name not in names]
    if missing:
        sys.exit(f"{made.name} lacks {', '.join(missing)}")


def _said(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
