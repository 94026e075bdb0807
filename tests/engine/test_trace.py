"""Records, and traces of them: what is written comes back, and what is damaged is refused with a sentence."""

import json
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.engine import EngineError
from specchat.engine.events import Finished, FinishReason, Ready, Step, Totals
from specchat.engine.round import Refused, Round
from specchat.engine.trace import VERSION, Record, TraceWriter, from_json, read_trace, to_json
from tests.engine.records import EVERY_RECORD, make_round, observed_round, records
from tests.failing import files_of_at_most

HEADER = f'{{"record": "trace", "version": {VERSION}}}\n'
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(records)
def test_every_record_comes_back_equal_from_one_line_of_utf8(record: Record) -> None:
    line = to_json(record)
    assert "\n" not in line
    assert from_json(line.encode().decode()) == record


@given(json_values)
def test_what_is_no_record_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="not a record"):
        from_json(json.dumps(value))


@given(st.sampled_from(EVERY_RECORD), st.data())
def test_a_field_of_the_wrong_type_is_refused_or_harmless(record: Record, data: st.DataObject) -> None:
    values = json.loads(to_json(record))
    values[data.draw(st.sampled_from(sorted(values)))] = data.draw(json_values)
    try:
        read = from_json(json.dumps(values))
    except ValueError:
        return
    again = from_json(to_json(read))
    assert repr(again) == repr(read)  # not ==: NaN is unequal to itself
    if isinstance(read, Round):
        list(read.tokens())


@pytest.mark.parametrize(
    "changes",
    [
        {"accepted": 3}, {"accepted": -1}, {"accepted": 0}, {"p": [0.5]}, {"q": []}, {"u": [0.1, 0.2, 0.3]},
        {"beta": [0.1]}, {"pieces": ["a"]}, {"last": None}, {"last_fate": None}, {"last_fate": "lucky"},
        {"drafted": [1.5, 2, 3, 4]}, {"at": "now"}, {"at": True}, {"rows": True}, {"proposers": [["small", 2, 3]]},
        {"proposers": [["small", 2, -1]]}, {"proposers": [["small", 2]]}, {"unheard_of": 1},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_a_round_that_contradicts_itself_is_refused(changes: dict[str, Any]) -> None:
    values = json.loads(to_json(make_round(drafted=4, accepted=1, rejected=True)))
    with pytest.raises(ValueError, match=r"not a record|contradicts itself"):
        from_json(json.dumps(values | changes))


@pytest.mark.parametrize("began", [False, True])
def test_an_error_before_the_reply_removes_the_file(tmp_path: Path, began: bool) -> None:
    path = tmp_path / "trace.jsonl"
    with suppress(KeyboardInterrupt), TraceWriter(path) as writer:
        writer.write(make_round() if began else EVERY_RECORD[0])
        raise KeyboardInterrupt
    assert path.exists() is began


def test_every_cut_leaves_the_whole_lines(tmp_path: Path) -> None:
    record, path = Finished("r", FinishReason.EOS, "né 🎈", "", 0.0), tmp_path / "trace.jsonl"
    whole = (HEADER + (to_json(record) + "\n") * 2).encode()
    for length in range(len(HEADER), len(whole) + 1):
        path.write_bytes(whole[:length])
        assert list(read_trace(path)) == [record] * (whole[:length].count(b"\n") - 1)


def test_a_header_that_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    with files_of_at_most(8), pytest.raises(EngineError, match=r"trace.jsonl cannot be written"):
        TraceWriter(tmp_path / "trace.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_grow_is_one_sentence(tmp_path: Path) -> None:
    with files_of_at_most(len(HEADER)):
        writer = TraceWriter(tmp_path / "trace.jsonl")
        for call in (partial(writer.write, EVERY_RECORD[0]), writer.close):
            with pytest.raises(EngineError, match=r"trace.jsonl cannot be written: File too large"):
                call()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"hello\n", b"\x00\xff\xfe\n", b"{}\n", b"[1]\n", b'{"record": "trace", "version": 8}\n',
        HEADER.rstrip().encode(), b"[" * 100_000 + b"\n",
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)
    with pytest.raises(EngineError, match=f"trace.jsonl is not a specchat trace of version {VERSION}"):
        list(read_trace(path))


@pytest.mark.parametrize(
    "line", [b"", b"{}", b"\xff\xfe", b"null", b'{"record": "round"}', b'{"record": "dance"}', b"[" * 100_000]
)
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(HEADER.encode() + to_json(EVERY_RECORD[0]).encode() + b"\n" + line + b"\n")
    with pytest.raises(EngineError, match=r"trace.jsonl is damaged: line 3 is not a trace record"):
        list(read_trace(path))


def test_a_killed_writer_leaves_every_record_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    script = (
        "import os, signal, sys; from pathlib import Path; from specchat.engine import *\n"
        "writer = TraceWriter(Path(sys.argv[1]))\n"
        "for i in range(3): writer.write(Died('x', float(i)))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, path], timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [record.at for record in read_trace(path) if not isinstance(record, Ready)] == [0.0, 1.0, 2.0]


CONTRADICTIONS = (("judged", 4), ("judged", 1), ("judged", None), ("p", (0.5,)), ("accepted", 5))


def test_an_observed_round_has_counts_for_chances() -> None:
    record = observed_round(Step(4, 2), "a", "b", "c")
    assert [(token.text, token.fate.value) for token in record.tokens()] == [
        ("a", "accepted"), ("b", "accepted"), ("", "rejected"), ("", "discarded"), ("c", "correction"),
    ]  # fmt: skip
    assert (record.tested, record.wasted, record.emitted, record.text) == (3, 2, (-1, -1, -1), "abc")
    changed = [replace(record, **{name: value}) for name, value in CONTRADICTIONS]
    for wrong in (
        *changed,
        *(Totals("r", 1.0, steps=(Step(*counts),)) for counts in ((2, 3), (2, -1), (1 << 40,) * 2)),
    ):
        with pytest.raises(ValueError, match=r"contradicts? (itself|themselves)"):
            from_json(to_json(wrong))


def test_a_tree_comes_back_as_it_was() -> None:
    beside = Refused(7, " an", 0.25, 0.5, 0.75)
    record = replace(make_round(drafted=2, accepted=1, rejected=True), refused=((), (beside, beside)), offered=9)
    assert from_json(to_json(record)) == record
    assert (record.verified, record.wasted, record.steps) == (9, 8, 2)
    with pytest.raises(ValueError, match="contradicts itself"):
        from_json(to_json(replace(record, refused=((),))))


UNUSUAL = "a\r\nb\rc\x0bd\x0ce\x85f\u2028g\u2029h\x1ci"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_file_gives_back_its_records(tmp_path: Path, end: str) -> None:
    path = tmp_path / "trace.jsonl"
    written = (*EVERY_RECORD, *(Finished("r", FinishReason.EOS, tail, "", 0.0) for tail in (UNUSUAL, "\ud83d")))
    with TraceWriter(path) as writer:
        for record in written:
            writer.write(record)
    path.write_bytes(path.read_bytes().replace(b"\n", end.encode()))
    assert tuple(read_trace(path)) == written


@pytest.mark.parametrize(("version", "absent"), [(1, ("refused", "offered")), (3, ("judged",))])
def test_older_versions_are_read(tmp_path: Path, version: int, absent: tuple[str, ...]) -> None:
    old = {name: value for name, value in json.loads(to_json(make_round())).items() if name not in absent}
    path = tmp_path / "old.jsonl"
    path.write_text(f'{{"record": "trace", "version": {version}}}\n{json.dumps(old)}\n')
    assert list(read_trace(path)) == [make_round()]


def fates(record: Round) -> list[str]:
    return [token.fate.value for token in record.tokens()]


@pytest.mark.parametrize(
    ("drafted", "accepted", "rejected", "expected"),
    [
        (4, 1, True, ["accepted", "rejected", "discarded", "discarded", "correction"]),
        (3, 3, False, ["accepted", "accepted", "accepted", "bonus"]),
        (2, 0, True, ["rejected", "discarded", "correction"]),
        (0, 0, False, ["plain"]),
    ],
)
def test_fates_follow_from_what_was_accepted(drafted: int, accepted: int, rejected: bool, expected: list[str]) -> None:
    record = make_round(drafted=drafted, accepted=accepted, rejected=rejected)
    assert fates(record) == expected
    assert record.tested == accepted + rejected
    assert record.emitted == (*record.drafted[:accepted], record.last)
    assert [token.place for token in record.tokens()] == list(range(drafted + 1))


def test_a_reply_that_ends_inside_the_accepted_tokens_has_no_last_token() -> None:
    record = replace(make_round(drafted=2, accepted=2), last=None, last_fate=None, last_piece="")
    assert fates(record) == ["accepted", "accepted"]
    assert record.emitted == record.drafted


def test_the_text_is_made_of_the_emitted_tokens_only() -> None:
    record = replace(make_round(drafted=3, accepted=1, rejected=True), pieces=("a", "b", "c"), last_piece="d")
    assert record.text == "ad"
    assert [token.text for token in record.tokens()] == ["a", "b", "c", "d"]
