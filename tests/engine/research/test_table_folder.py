"""Tables from a text to a folder and back, and what is wrong with a folder in one sentence."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from specchat.engine import EngineConfig, EngineError
from specchat.engine.progress import ignore_progress
from specchat.engine.research.tables import CARD, TABLES
from specchat.engine.tools.distill import DistillOptions, distill
from specchat.engine.worker.assembly import Assembly, assemble
from tests.tiny_model import write_tiny_model

WORDS = "the quick brown fox and the lazy dog\nthe dog barks\n"


@pytest.fixture(scope="module")
def target(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model()


def count(target: Path, out: Path, *text: Path) -> int:
    return distill(DistillOptions(out.parent, str(target), out, kind="bigram", text=text), ignore_progress).tokens


def load(target: Path, draft: Path) -> Assembly:
    return assemble(EngineConfig(str(target), draft.parent, draft=str(draft), context=64, slots=1), ignore_progress)


@pytest.fixture
def tables(target: Path, tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(WORDS)
    count(target, tmp_path / "tables", tmp_path / "text.txt")
    return tmp_path / "tables"


def test_what_was_counted_is_loaded_and_offered_first(target: Path, tables: Path) -> None:
    made = load(target, tables)
    names = list(made.drafters)
    assert (names[0], names[-2:]) == ("bigram", ["unigram", "none"])
    encode = made.model.tokenizer.encode
    the, quick, dog = (encode(word)[0] for word in (" the", " quick", " dog"))
    counts = made.parts["tables"].counts  # type: ignore[attr-defined]
    assert counts.tokens == len(encode(WORDS))
    behind = counts.following[counts.starts[the] : counts.starts[the + 1]].tolist()
    assert behind[0] == encode(" lazy")[0]
    first = encode("the")[0]
    assert set(counts.following[counts.starts[first] : counts.starts[first + 1]].tolist()) == {quick, dog}


def test_of_chats_the_replies_are_counted(target: Path, tmp_path: Path) -> None:
    talk = {"messages": [{"role": "user", "content": "dog " * 30}, {"role": "assistant", "content": "the fox"}]}
    (tmp_path / "talks.jsonl").write_text(f"{json.dumps(talk)}\n{json.dumps(talk)}\n")
    (tmp_path / "more.txt").write_text("the")
    found = count(target, tmp_path / "tables", tmp_path / "talks.jsonl", tmp_path / "more.txt")
    assert found == 5


@pytest.mark.parametrize("seed", [0, 5])
def test_another_target_of_the_same_tokens_may_use_them(tables: Path, tmp_path: Path, seed: int) -> None:
    other = write_tiny_model(tmp_path / "other", seed=seed, vocabulary=320)
    assert "tables" in load(other, tables).parts


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        ("tensor", r"tables\.safetensors is broken \(.*times.*\): count the tables again"),
        ("cut", r"tables\.safetensors is broken"),
        ("missing", r"tables\.safetensors is broken"),
        ("size", r"is broken \(it is for 306 tokens, its card for 300, and .* has 320\)"),
        ("card", r"has no tables \(tables\.json: .*\): count them with specchat distill --kind bigram"),
        ("format", r"has tables of a newer specchat: update specchat"),
        ("tokens", r"were counted for .*, which has other tokens than .*: count them for this target"),
    ],
)
def test_a_folder_that_cannot_be_used_is_one_sentence(target: Path, tables: Path, spoil: str, sentence: str) -> None:
    weights, card = tables / TABLES, json.loads((tables / CARD).read_text())
    if spoil == "tensor":
        left = load_file(weights)
        del left["times"]
        save_file(left, weights)
    elif spoil == "cut":
        weights.write_bytes(weights.read_bytes()[:100])
    elif spoil == "missing":
        weights.unlink()
    changed = {"size": {"vocabulary": 300}, "format": {"format": 9}, "tokens": {"tokenizer": "another"}}
    written = json.dumps(card | changed.get(spoil, {}))
    (tables / CARD).write_text(written[:30] if spoil == "card" else written)
    with pytest.raises(EngineError, match=sentence) as raised:
        load(target, tables)
    assert "\n" not in str(raised.value)


def test_what_cannot_be_counted_is_one_sentence(target: Path, tables: Path, tmp_path: Path) -> None:
    short, wrong, talks = tmp_path / "short.txt", tmp_path / "wrong.txt", tmp_path / "talks.json"
    short.write_text("a")
    wrong.write_bytes(b"\xff\xfe\x00")
    talks.write_text("{}")
    before = (tables / TABLES).read_bytes()
    for text, out, sentence in (
        (short, "new", "there are no two tokens in"),
        (wrong, "new", "is no UTF-8 text"),
        (talks, "new", "has no reply to count; talks.json: it has no conversation"),
        (tmp_path / "none.txt", "new", "cannot be read"),
        (short, "tables", "is there already, and not empty: name another folder with --out"),
    ):
        with pytest.raises(EngineError, match=sentence):
            count(target, tmp_path / out, text)
    assert (tables / TABLES).read_bytes() == before
    assert not (tmp_path / "new").exists()
