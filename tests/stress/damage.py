"""Files cut, flipped and rewritten at random: each gets one sentence and exit code 2, or is read in spite of it.

Every try runs the product's own command line in a process of its own, forked from one that has loaded the libraries.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.stress.inputs import Inputs
from tests.stress.table import Row

LONGEST_S = 10.0
"""A try that takes longer hangs. The time counts from the fork, with the libraries loaded."""
SHARES = {
    "model folder": 0.25, "safetensors": 0.15, "GGUF": 0.2, "head folder": 0.12, "settings": 0.1, "preset": 0.03,
    "database": 0.1, "trace": 0.05,
}  # fmt: skip
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_VALUES = (
    b"-1",
    b"0",
    b"99999999999999999999999",
    b"1e999",
    b"null",
    b'"x"',
    b"[]",
    b"{}",
    b"[" * 5000,
    b"nan",
    b"1.5",
)
_INTERNAL = re.compile(r"internal error|\b[A-Z]\w+(?:Error|Exception)\b")


@dataclass(frozen=True)
class Outcome:
    """How a command line ended."""

    code: int | None
    """None if it had to be killed; negative if a signal ended it."""
    out: str
    err: str


def damage(count: int, seed: int = 0) -> Iterator[Row]:
    """A row for each kind of input; `count` tries in all."""
    with tempfile.TemporaryDirectory() as folder:
        inputs = Inputs(Path(folder) / "sound")
        for kind, share in SHARES.items():
            row = Row(f"damaged: {kind}")
            sentences = 0
            for number in range(max(round(count * share), 1)):
                dice = random.Random(f"{seed} {kind} {number}")
                home = Path(folder) / "home"
                done, wrong = one_try(inputs, kind, dice, home)
                row.add(*(f"[{kind} {number}] {sentence}" for sentence in wrong))
                sentences += done.code == 2
                shutil.rmtree(home)
            row.note = f"{sentences} refused in one sentence, {row.tries - sentences} read in spite of it"
            yield row


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
