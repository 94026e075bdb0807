"""Files cut, flipped and rewritten at random: each gets one sentence and exit code 2, or is read in spite of it.

Every try runs the product's own command line in a separate process, forked from one that has loaded the libraries.
"""

import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.stress import TRIES
from tests.stress.inputs import Inputs

LONGEST_S = 10.0
"""A try that takes longer hangs. The time counts from the fork, with the libraries loaded."""
TRIES_OF = {
    "model folder": 6, "safetensors": 4, "GGUF": 5, "head folder": 3, "settings": 3, "preset": 1, "database": 3,
    "trace": 2,
}  # fmt: skip
"""Kinds of input, and how many tries of each are slow ones."""

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_VALUES = (*b"-1 0 99999999999999999999999 1e999 null [] {} nan 1.5".split(), b'"x"', b"[" * 5000)
_INTERNAL = re.compile(r"internal error|\b[A-Z]\w+(?:Error|Exception)\b")


@dataclass(frozen=True)
class Outcome:
    """How a command line ended."""

    code: int | None
    """None if it had to be killed; negative if a signal ended it."""
    out: str
    err: str


def one_try(inputs: Inputs, kind: str, dice: random.Random, home: Path) -> tuple[Outcome, list[str]]:
    """Copy the sound input, damage one file of it, run the command; what came of it, and what is wrong with that."""
    case = inputs.case(kind, home)
    file = dice.choice(case.damageable)
    sound = file.read_bytes()
    file.write_bytes(damaged(sound, dice, text=file.suffix in (".json", ".jsonl", ".toml", ".jinja")))
    before = _contents(case.kept)
    done = run(case.command, home)
    wrong = judged(done)
    after = list(_contents(case.kept).values())
    lost = [name for name, content in before.items() if content not in after and not case.rewrites]
    if lost:
        wrong.append(f"overwrote {', '.join(lost)}")
    return done, [f"{file.name}: {sentence}" for sentence in wrong]


def damaged(content: bytes, dice: random.Random, *, text: bool) -> bytes:
    """The content with one to three wounds; most of them in its first 4,000 bytes, where the headers are."""
    data = bytearray(content)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        size = max(len(data), 1)
        start = dice.randrange(min(size, 4000) if dice.random() < 0.6 else size)
        length = dice.choice((1, 4, 8, 100, 4000))
        kinds = ["cut", "flip", "rewrite", "zero", "insert", "repeat", *(["value"] * 6 if text else [])]
        match dice.choice(kinds):
            case "cut":
                del data[start:]
            case "flip":
                for _ in range(dice.choice((1, 3, 20))):
                    if data:
                        data[dice.randrange(start, size) % len(data)] ^= 1 << dice.randrange(8)
            case "rewrite":
                data[start : start + length] = dice.randbytes(length)
            case "zero":
                data[start : start + length] = bytes(length)
            case "insert":
                data[start:start] = dice.randbytes(length)
            case "repeat":
                data[start:start] = data[start : start + length]
            case "value":
                found = list(_NUMBER.finditer(data))
                if found:
                    place = dice.choice(found)
                    data[place.start() : place.end()] = dice.choice(_VALUES)
    return bytes(data)


def judged(done: Outcome) -> list[str]:
    """What is wrong with how a command ended."""
    lines = done.err.splitlines()
    if done.code is None:
        return [f"hung for {LONGEST_S:g} s"]
    if "Traceback" in done.err + done.out:
        return [f"traceback: {lines[-1]}"]
    if done.code not in (0, 2):
        return [f"exit code {done.code}: {done.err[-300:]!r}"]
    strange = [line for line in lines if not line.startswith("specchat: ")]
    if strange or (done.code == 2 and len(lines) != 1):
        return [f"not one sentence: {done.err[-400:]!r}"]
    if done.code == 2 and _INTERNAL.search(lines[0]):
        return [f"an internal error: {lines[0][-300:]}"]
    return []


def run(command: Callable[[], int], home: Path) -> Outcome:
    """Run in a fork, with stdout and stderr in files and nothing on stdin."""
    streams = [home / "stdout", home / "stderr"]
    child = os.fork()
    if not child:
        _in_child(command, streams, home)
    code = _wait(child)
    out, err = (stream.read_bytes().decode("utf-8", "replace") for stream in streams)
    return Outcome(code, out, err)


def _in_child(command: Callable[[], int], streams: Sequence[Path], home: Path) -> None:
    code = 70
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, stream in enumerate(streams, start=1):
            os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT), number)
        sys.stdin, sys.stdout, sys.stderr = (open(n, mode, closefd=False) for n, mode in enumerate("rww"))  # noqa: SIM115
        os.environ["SPECCHAT_HOME"] = str(home)
        code = command()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(child: int) -> int | None:
    end = time.monotonic() + LONGEST_S
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return Inputs(tmp_path_factory.mktemp("sound") / "inputs")


@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("kind", TRIES_OF)
def test_damage_gets_one_sentence(inputs: Inputs, kind: str, number: int, tmp_path: Path) -> None:
    assert one_try(inputs, kind, random.Random(f"test {kind} {number}"), tmp_path / "home")[1] == []


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("model folder", "0 model folder 27"),  # model_max_length that is no number
        ("model folder", "0 model folder 64"),  # config.json nested too deeply
        ("model folder", "0 model folder 200"),  # eos_token_id that is no token id
        ("head folder", "0 head folder 17"),  # head.json nested too deeply
        ("head folder", "0 head folder 75"),  # a vocabulary with tokens that the target does not have
    ],
)
def test_what_was_found_is_refused(inputs: Inputs, kind: str, seed: str, tmp_path: Path) -> None:
    done, wrong = one_try(inputs, kind, random.Random(seed), tmp_path / "home")
    assert (done.code, wrong) == (2, [])


def test_a_damaged_database_is_named(inputs: Inputs, tmp_path: Path) -> None:
    done, wrong = one_try(inputs, "database", random.Random("x database 0"), tmp_path / "home")
    assert (done.code, wrong) == (2, [])
    assert "specchat.db.broken-1" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("kind", TRIES_OF)
def test_more_of_all_kinds(inputs: Inputs, kind: str, tmp_path: Path) -> None:
    for number in range(TRIES * TRIES_OF[kind]):
        assert one_try(inputs, kind, random.Random(f"1 {kind} {number}"), tmp_path / str(number))[1] == []
