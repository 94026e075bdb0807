"""One try of each fault, and two programs on one home; more are `python -m tests.stress --part faults`."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from tests.stress import faults, sharing

pytestmark = pytest.mark.slow

needs_mount = pytest.mark.skipif(not faults.can_mount(), reason="needs to mount a small file system")


@pytest.mark.parametrize(
    "scene",
    [
        faults.terminated,
        faults.hung_up,
        faults.terminal_gone,
        faults.terminal_gone_unnoticed,
        faults.suspended,
        faults.clock_backwards,
        faults.file_size_limit,
        pytest.param(faults.full_disk, marks=needs_mount),
        pytest.param(faults.read_only_home, marks=needs_mount),
        pytest.param(faults.read_only_chats, marks=needs_mount),
        pytest.param(sharing.both_to_the_end, marks=pytest.mark.slow),
        sharing.one_is_killed,
    ],
    ids=lambda scene: scene.__name__,
)
def test_it_is_survived(scene: faults.Scene, tmp_path: Path) -> None:
    assert scene(tmp_path, random.Random(3)) == []


@pytest.mark.parametrize("times", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_resizing_is_survived(times: int, tmp_path: Path) -> None:
    assert partial(faults.resized, times=times)(tmp_path, random.Random(3)) == []
