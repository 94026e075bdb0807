"""Bigram and unigram tables: counted, drafted from exactly, and kept in a folder; a bad folder is one sentence."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specchat.engine import EngineConfig, EngineError, Request, Sampling
from specchat.engine.progress import ignore_progress
from specchat.engine.research.tables import CARD, TABLES, BigramNetwork, Counts, UnigramNetwork
from specchat.engine.tools.distill import DistillOptions, distill
from specchat.engine.tools.distill.tables import TokenCounter
from specchat.engine.worker.assembly import Assembly, assemble
from tests.engine.tiny import VOCABULARY, ask, rounds_of, tiny_engine, tiny_model, tiny_tables
from tests.tiny_model import write_tiny_model

TEXT = b"hi! the hi! of the hi! and a hi! or two hi! again, hi!"


def test_sampled_drafts_have_the_distributions_of_the_tables() -> None:
    """A row's q is what it states: the normalised counts after the previous token; 1 / V for random drafts."""
    counted = torch.zeros(VOCABULARY, VOCABULARY)
    for one, other in pairwise(TEXT):
        counted[one, other] += 1
    sampling = Sampling(temperature=0.5)
    with tiny_engine(tiny_model(sharpness=2.0), tables=tiny_tables(TEXT)) as engine:
        text = list(ask("hi!").messages[0].content.encode())
        for drafter in ("bigram", "random"):
            request = Request("r", prompt_ids=tuple(text), drafter=drafter, gamma=3, max_tokens=30, sampling=sampling)
            tokens, seen = list(text), 0
            for each in rounds_of(engine.stream(request)):
                before = [tokens[-1], *each.drafted]
                for place, q in enumerate(each.q):
                    row = counted[before[place]] ** 2  # at temperature 0.5
                    if drafter == "random":
                        assert q == pytest.approx(1 / VOCABULARY)
                    elif row.sum():
                        assert q == pytest.approx((row[each.drafted[place]] / row.sum()).item(), rel=1e-4)
                        seen += 1
                tokens += each.emitted
            assert seen or drafter == "random"


CPU = torch.device("cpu")


def counted(*pieces: list[int], vocabulary: int = 8) -> Counts:
    counter = TokenCounter(vocabulary)
    for piece in pieces:
        counter.add(np.array(piece, dtype=np.int64))
    return counter.counts()


def behind(network: BigramNetwork | UnigramNetwork, token: int) -> Tensor:
    return network.forward(torch.tensor([[7, token]]), [0], [0])[0, 0].softmax(-1)


def test_a_table_says_how_often_each_token_followed() -> None:
    bigram = BigramNetwork(counted([1, 2, 1, 3], [1, 3, 0]), 10, CPU)
    assert behind(bigram, 1).tolist() == pytest.approx([0, 0, 1 / 3, 2 / 3, 0, 0, 0, 0, 0, 0])
    assert behind(bigram, 3).tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    # Never seen before another token: the most frequent tokens of all.
    for unseen in (0, 5, 9):
        assert behind(bigram, unseen).tolist() == pytest.approx([1 / 7, 3 / 7, 1 / 7, 2 / 7, 0, 0, 0, 0, 0, 0])
    unigram = UnigramNetwork(counted([1, 2, 1, 3], [1, 3, 0]), 10, CPU)
    assert all(torch.equal(behind(unigram, token), behind(bigram, 9)) for token in range(8))


@pytest.mark.parametrize(
    ("spoilt", "sentence"),
    [
        ({"starts": torch.tensor([0, 1])}, "do not fit together"),
        ({"single": torch.ones(8)}, "do not fit together"),
        ({"times": torch.ones(9, dtype=torch.int32)}, "do not fit together"),
        ({"starts": torch.tensor([0, 2, 1, 3, 4, 4, 4, 4, 4])}, "not in order"),
        ({"following": torch.tensor([3, 2, 1, 8], dtype=torch.int32)}, "not in its vocabulary"),
        ({"times": torch.tensor([1, 1, 0, 1], dtype=torch.int32)}, "counts that are none"),
        ({"single": torch.zeros(8, dtype=torch.int64)}, "counts that are none"),
    ],
)
def test_what_is_no_table_is_told(spoilt: dict[str, Tensor], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(counted([1, 2, 1, 3], [1, 3, 0]), **spoilt).check()


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


def test_another_target_of_the_same_tokens_may_use_them(tables: Path, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other", seed=5, vocabulary=320)
    assert "tables" in load(other, tables).parts


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        ("tensor", r"tables\.safetensors is broken \(.*times.*\): make the tables again"),
        ("cut", r"tables\.safetensors is broken"),
        ("missing", r"tables\.safetensors is broken"),
        ("size", r"is broken \(it is for 306 tokens, its card for 300, and .* has 320\)"),
        ("card", r"has no tables \(tables\.json: .*\): make the tables with specchat distill --kind bigram"),
        ("format", r"is of a newer specchat: update specchat"),
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
        (wrong, "new", "is not UTF-8 text"),
        (talks, "new", "has no reply to count; talks.json: it has no conversation"),
        (tmp_path / "none.txt", "new", "cannot be read"),
        (short, "tables", "is there already, and not empty: name another folder with --out"),
    ):
        with pytest.raises(EngineError, match=sentence):
            count(target, tmp_path / out, text)
    assert (tables / TABLES).read_bytes() == before
    assert not (tmp_path / "new").exists()
