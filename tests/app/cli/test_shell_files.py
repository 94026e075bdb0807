"""The man page, the completions and the reference of the settings say what the program does."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.make_shell_files import FOLDER, REFERENCE, files, reference


def test_the_files_are_those_of_the_command_line() -> None:
    made = {FOLDER / name: text for name, text in files().items()} | {REFERENCE: reference()}
    for file, text in made.items():
        assert file.read_text(encoding="utf-8") == text, "run python -m scripts.make_shell_files"


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_the_man_page_is_set_without_a_warning() -> None:
    page = [str(FOLDER / "specchat.1")]
    done = subprocess.run(["groff", "-man", "-ww", "-Tutf8", *page], capture_output=True, timeout=60, check=True)
    assert done.stderr == b""
    assert "γ".encode() in done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    program = tmp_path / "specchat"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m specchat "$@"\n')
    program.chmod(0o755)
    script = (
        f'source "{FOLDER}/specchat"; COMP_WORDS=(specchat ask --no-th); COMP_CWORD=2;'
        ' _specchat_completion specchat; echo "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    assert "--no-thinking" in done.stdout.split()
