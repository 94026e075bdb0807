"""The wheel: what it holds, and that it works next to a project with its own `app` package."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from scripts.release import NEEDED, check, sdist, try_out
from scripts.release import wheel as build_wheel
from specchat.engine import models_folder
from specchat.engine.kernels.build import LIBRARY

ROOT = Path(__file__).parents[1]
MODELS = models_folder()  # before any test redirects it


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this repository: an earlier build's leftovers would get into the wheel."""
    kept_out = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "tests")
    return shutil.copytree(ROOT, tmp_path_factory.mktemp("repository") / "source", ignore=kept_out)


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a release: made from an sdist of a clean tree."""
    folder = tmp_path_factory.mktemp("wheel")
    return build_wheel(sdist(source, folder), folder)


@pytest.mark.slow
def test_the_wheel_installs_one_top_level_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name and ".data/" not in name} == {"specchat"}
    for shared in ("man/man1/specchat.1", "bash-completion/completions/specchat", "zsh/site-functions/_specchat"):
        assert any(name.endswith(f".data/data/share/{shared}") for name in names)
    sources = [path for top in ("app", "engine") for path in (ROOT / top).rglob("*.py")]
    assert {f"specchat/{path.relative_to(ROOT)}" for path in sources} <= set(names)
    for needed in (
        *(
            "app/ui/styles/chat.tcss",
            "app/ui/rendering/help.toml",
            "app/chat/lessons.toml",
            "app/storage/migrations.sql",
        ),
        *("engine/py.typed", "assets/heads/smollm2-135m/head.safetensors"),
    ):
        assert f"specchat/{needed}" in names
    assert any(name.startswith("specchat/assets/prompts/") for name in names)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.usefixtures("default_model")
def test_an_installation_answers_beside_another_app(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "environment"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    own = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=300)
    # The dependencies come from the environment that runs the tests; a bare path reads no editable install.
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (own / "app").mkdir()
    (own / "app" / "__init__.py").write_text("raise ImportError('another distribution')\n")
    project = tmp_path / "project"
    (project / "app").mkdir(parents=True)
    (project / "app" / "main.py").write_text("raise SystemExit('the project was started')\n")
    environment = {**os.environ, "SPECCHAT_HOME": str(tmp_path / "home"), "PYTHONPATH": str(project)}
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "models").symlink_to(MODELS)
    for command in ([home / "bin" / "specchat"], [python, "-m", "specchat"]):
        done = subprocess.run(
            [*command, "ask", "--max-tokens", "4", "Name a river."], cwd=project, env=environment, capture_output=True,
            text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
    where = [python, "-c", "import specchat.engine; print(specchat.engine.__file__)"]
    found = subprocess.run(where, cwd=project, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.startswith(str(home))


@pytest.mark.slow
def test_a_release_is_complete(wheel: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has every file of a wheel of the tree itself, which is built without its kernels, as they take long."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(build_wheel(source, tmp_path)) as other:
        assert set(one.namelist()) - set(other.namelist()) == {f"specchat/engine/kernels/{LIBRARY.name}"}
        assert set(other.namelist()) < set(one.namelist())
    try_out(wheel)


def test_a_release_needs_its_version_everywhere() -> None:
    said = " ".join(check("99.0.0"))
    assert "set it to 99.0.0" in said
    assert "CHANGELOG.md has no section 99.0.0" in said


def test_the_image_gets_every_file_it_installs() -> None:
    """What `setup.py` packs must pass `.dockerignore`, which lets in what it names alone."""
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = {"constraints.txt", "pyproject.toml", "setup.py", "README.md", "LICENSE", "scripts/specchat/__main__.py"}
    copied |= {name for name in NEEDED if not name.startswith("assets/heads")} | {"assets/heads", "assets/traces"}
    for name in copied:
        assert any(name == place or name.startswith(f"{place}/") for place in let_in), name
        assert (ROOT / name).exists(), name
