"""Atomic replacement of files: the old content or the new, never a partial file."""

import os
import stat
from contextlib import suppress
from pathlib import Path

from specchat.engine import replacing


def parts(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.endswith(".part")]


def test_a_failure_leaves_the_old_content_and_no_partial_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with suppress(RuntimeError), replacing(path) as part:
        part.write_text("ne")
        raise RuntimeError("no more")
    assert path.read_text() == "old"
    assert parts(tmp_path) == []


def test_a_replaced_file_keeps_its_permissions_and_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    with replacing(link) as part:
        part.write_text("new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_two_writers_do_not_share_a_partial_file_and_readers_see_whole_contents(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as one:
        one.write_text("one")
        with replacing(path) as other:
            other.write_text("other")
            assert not path.exists()
            assert other.parent == tmp_path
        assert path.read_text() == "other"
    assert path.read_text() == "one"
    assert parts(tmp_path) == []


def test_a_partial_file_that_another_program_deletes_meanwhile_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    (tmp_path / ".file.other.part").symlink_to(tmp_path / "deleted")
    with replacing(path) as part:
        part.write_text("new")
    assert path.read_text() == "new"


def test_what_a_killed_writer_left_is_removed_once_it_is_old(tmp_path: Path) -> None:
    old, young = tmp_path / ".file.0.part", tmp_path / ".file.1.part"
    for left in (old, young):
        left.write_text("half")
    os.utime(old, (0, 0))
    with replacing(tmp_path / "file") as part:
        part.write_text("whole")
    assert parts(tmp_path) == [young.name]
