"""Distilling for a tiny target from text to draft: cut off, continued, begun with a finished draft, and refused."""

import errno
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from specchat.engine import EngineConfig, EngineError
from specchat.engine.config import SHIPPED_HEADS
from specchat.engine.drafters import part_folder
from specchat.engine.drafters.block.reading import LoadedBlock
from specchat.engine.drafters.head.folder import CARD, WEIGHTS, HeadAcceptance, HeadCard, read_card, save_head
from specchat.engine.drafters.head.network import DraftHead
from specchat.engine.drafters.published.medusa import MedusaHeads
from specchat.engine.models.load import LoadedModel, load_model
from specchat.engine.progress import ignore_progress
from specchat.engine.tools.distill import Distilled, DistillOptions, distill, text, trainer, training
from specchat.engine.tools.distill.eagle import Eagle, head_shape
from specchat.engine.tools.distill.parallel import Pass
from specchat.engine.tools.distill.text import Corpus
from specchat.engine.tools.distill.work_folder import WORK, WorkFolder, locked, require_text
from specchat.engine.tools.prompts import load_prompts
from specchat.engine.worker.assembly import Assembly, assemble
from tests.engine.hybrids import hybrid
from tests.failing import fails
from tests.tiny_model import write_tiny_model
from tests.waiting import until

_REACHED = HeadAcceptance(0.5, (0.5,), 1.5)


@pytest.fixture(scope="module", autouse=True)
def _clock() -> Iterator[None]:
    """Half a second passes with each look at the clock; little text, and short replies in the evaluation."""
    ticks = count()
    with pytest.MonkeyPatch.context() as patch:
        for module in (training, trainer):
            patch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(ticks) / 2))
        patch.setattr(training, "LEAST_TOKENS", 300)
        patch.setattr(trainer, "LENGTH", 40)
        patch.setattr(training, "MAX_TOKENS", 8)
        patch.setattr(training, "load_prompts", lambda names: [load_prompts(names)[0].first(8)])
        yield


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("target") / "other", seed=5)


@pytest.fixture(scope="module")
def model(target: Path) -> LoadedModel:
    return load_model(target, torch.device("cpu"), torch.float32, ignore_progress)


@pytest.fixture
def head(model: LoadedModel, tmp_path: Path) -> Path:
    """A finished head of random weights."""
    return write_head(tmp_path / "finished", model, 0)


def write_head(folder: Path, model: LoadedModel, seed: int) -> Path:
    torch.manual_seed(seed)
    shape = head_shape(model.model, model.name)
    card = HeadCard(model.name, model.fingerprint, shape, 7000, 90, 5.0, 4, _REACHED, _REACHED)
    save_head(folder, DraftHead(shape), torch.arange(3, 203), card)
    return folder


def make(target: Path, out: Path, minutes: float = 0.1, **more: object) -> Distilled:
    given = {"models": out.parent / "models", "target": str(target), "out": out, "minutes": minutes} | more
    return distill(DistillOptions(**given), ignore_progress)  # type: ignore[arg-type]


def loaded(target: Path, draft: Path | None = None, **more: object) -> Assembly:
    config = EngineConfig(str(target), target.parent / "store", draft=draft and str(draft), **more)  # type: ignore[arg-type]
    return assemble(config, ignore_progress)


@pytest.mark.slow
def test_the_card_says_where_the_head_comes_from_and_more_minutes_go_on_with_it(target: Path, tmp_path: Path) -> None:
    out = tmp_path / "head"
    made = make(target, out, 1)
    card = read_card(out)
    assert (card.target, card.tokens, card.steps) == (target.name, made.tokens, made.steps)
    assert card.tokens >= 300
    assert (card.minutes, card.gamma) == (pytest.approx(1, abs=0.1), 4)
    assert 1 <= len(card.greedy.by_position) <= card.gamma
    assert card.greedy.rate > 0.05
    assert card.sampled.emitted_per_round > 1
    after = make(target, out, 1.2)
    assert after.steps > made.steps
    assert after.tokens == made.tokens


@pytest.mark.daily(2)
@pytest.mark.parametrize("kind", ["block", "medusa", "pass"])
def test_drafts_of_other_kinds_are_loaded_and_trained_further(
    kind: str, target: Path, other: Path, tmp_path: Path
) -> None:
    out, words = tmp_path / "draft", "made for tiny, with other weights than other has"
    made = make(target, out, kind=kind)
    assert made.target == target.name
    assert made.steps >= 1
    parts = loaded(target, out)
    if kind == "pass":
        assert parts.drafters.get("pass")
        with pytest.raises(EngineError, match=words):
            loaded(other, out)
    else:
        found = parts.parts["block"] if kind == "block" else parts.parts["head"].head
        assert isinstance(found, LoadedBlock if kind == "block" else MedusaHeads)
        unfit = loaded(other, out)
        assert not unfit.parts
        assert any(words in notice for notice in unfit.notices)
    assert make(target, tmp_path / "after", kind=kind, begin=str(out)).steps_before == made.steps
    with pytest.raises(EngineError, match=f"a draft of the kind {kind}, not eagle"):
        make(target, out)


@pytest.mark.parametrize("spoil", ["weights", "card", "missing"])
def test_a_broken_folder_is_refused_by_name(head: Path, target: Path, spoil: str) -> None:
    if spoil == "weights":
        (head / WEIGHTS).write_bytes((head / WEIGHTS).read_bytes()[:1000])
    elif spoil == "card":
        (head / CARD).write_text('{"format": 1, "target"', encoding="utf-8")
    else:
        (head / WEIGHTS).unlink()
    with pytest.raises(EngineError, match=str(head)) as raised:
        loaded(target, head)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_a_kill_loses_neither_text_nor_training(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "head"
    for wanted in ("text-00000.safetensors", "training.pt"):
        if not (child := os.fork()):
            torch.set_num_threads(1)  # a fork has none of torch's
            training.time = trainer.time = time
            trainer.CHECKPOINT_S = 0.5
            make(target, out, 0.12)
            os._exit(1)
        until(lambda: (out / WORK / wanted).is_file() or os.waitpid(child, os.WNOHANG) != (0, 0))  # noqa: B023
        assert (out / WORK / wanted).is_file(), "the child has ended"
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    tokens = Corpus(out / WORK).tokens
    checkpoint = torch.load(out / WORK / "training.pt", weights_only=True)
    spent = json.loads((out / WORK / "distill.json").read_text())["text_seconds"] + checkpoint["seconds"]
    assert spent > checkpoint["seconds"]
    monkeypatch.setattr(training, "TEXT_SHARE", 0.0)
    card = make(target, out, spent / 60 + 0.03)
    assert card.tokens == tokens
    assert card.steps > checkpoint["steps"]


def test_prompts_of_ones_own(target: Path, tmp_path: Path) -> None:
    made = make(target, tmp_path / "head", 0.2, prompts=[["the quick brown fox"], ["the lazy dog"]])
    assert made.reached["greedy"].emitted_per_round > 1
    with pytest.raises(EngineError, match="no prompt has at most"):
        make(target, tmp_path / "long" / "head", prompts=[["fox " * 500]])
    assert not (tmp_path / "long").exists()


def test_training_begins_with_a_head(target: Path, head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "CONTINUED_RATE", 0.0)
    before, out = {file.name: file.read_bytes() for file in head.iterdir()}, tmp_path / "head"
    made = make(target, out, begin=str(head))
    assert {file.name: file.read_bytes() for file in head.iterdir()} == before
    card, written = read_card(out), Corpus(out / WORK).tokens
    assert (card.tokens, card.steps_before) == (7000 + written, 90) == (made.tokens, made.steps_before)
    assert card.steps > 90
    assert card.minutes == pytest.approx(5.1, abs=0.05)
    first, last = (load_file(folder / WEIGHTS) for folder in (head, out))
    del first["vocabulary"]  # the new one is counted again
    assert 2 in last["vocabulary"], "the token that ends a reply"
    assert all(torch.equal(last[name], weight) for name, weight in first.items())  # the learning rate is 0


@pytest.mark.slow
def test_text_of_another_folder_is_read_in_place_of_new_text(target: Path, head: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    make(target, first, begin=str(head))
    made = make(target, second, begin=str(head), text=(first,))
    assert made.tokens == read_card(first).tokens
    assert not Corpus(second / WORK).shards
    assert read_card(second).steps > 90
    shutil.rmtree(head)
    again = make(target, second, 0.2, text=(first,))
    assert again.steps > made.steps, "it continues with the copy of what it began with"
    assert again.steps_before == 90


def test_what_does_not_fit_is_refused_unwritten(target: Path, other: Path, head: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for start, kind, its_target, goal, words in (
        (head, "eagle", other, out, "made for tiny, with other weights than other has"),
        (head, "medusa", target, out, "holds no draft of the kind medusa"),
        (head, "eagle", target, head / "sub", "which stays as it is"),
        (tmp_path / "nowhere", "eagle", target, out, "there is no folder .*nowhere to begin from"),
    ):
        with pytest.raises(EngineError, match=words):
            make(its_target, goal, kind=kind, begin=str(start))
        assert not out.exists()
    with pytest.raises(EngineError, match="has recurrent layers, whose passes cannot read look-ahead"):
        Pass(hybrid("qwen3_5_text"))
    assert sorted(file.name for file in head.iterdir()) == [CARD, WEIGHTS]


@pytest.mark.model
def test_the_shipped_head_can_be_trained_further(default_model: Path) -> None:
    model = load_model(default_model, torch.device("cpu"), torch.bfloat16, ignore_progress)
    assert Eagle(model).start(SHIPPED_HEADS / model.name).steps > 0


def test_a_work_folder_is_of_one_distillation(tmp_path: Path) -> None:
    work = tmp_path / "head" / WORK
    for folder, *about in ((tmp_path / "medusa" / WORK, "mark", "medusa"), (work, "mark")):
        with locked(folder):
            standing = WorkFolder.of(folder, "tiny", *about)
    for name, words in (("medusa", "of the kind medusa, not eagle"), ("head", "is read anyway")):
        with pytest.raises(EngineError, match=words):
            standing.text_of(tmp_path / name)
    with pytest.raises(EngineError, match="no text"):
        require_text([tmp_path / "head", tmp_path / "x"])
    with locked(work), pytest.raises(EngineError, match="another specchat is distilling"), locked(work):
        pass
    with pytest.raises(EngineError, match="holds the training of a draft head for tiny, with other"):
        WorkFolder.of(work, "other", "another mark")


def test_a_target_without_a_chat_template_needs_prompts(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="has no chat template"):
        make(tiny_model(chat_template=None), tmp_path / "head")
    assert not (tmp_path / "head").exists()


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("module", "function", "words"),
    [
        (text, "save_file", "writing training text"),
        (torch, "save", "saving the training"),
        (part_folder, "save_file", "saving the draft head"),
    ],
)
def test_a_full_disk_is_one_sentence_and_the_same_call_goes_on_once_there_is_room(
    module: ModuleType, function: str, words: str, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, function, fails(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        with pytest.raises(EngineError, match=f"{words} stopped because the disk of .* is full"):
            make(target, tmp_path / "head")
    assert not (tmp_path / "head" / CARD).exists()
    make(target, tmp_path / "head")
    assert loaded(target, tmp_path / "head").parts


def test_a_folder_with_something_else_is_left_alone(target: Path) -> None:
    before = {file.name: file.read_bytes() for file in target.iterdir()}
    with pytest.raises(EngineError, match=r"holds something else already \(.*json\): distil into another folder"):
        make(target, target)
    assert {file.name: file.read_bytes() for file in target.iterdir()} == before


def test_stored_replies_are_learnt(target: Path, head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "LEAST_OF_CHATS", 300)
    chats, out = tmp_path / "chats.jsonl", tmp_path / "out"
    reply = "the quick brown fox jumps over the lazy dog and the dog sleeps " * 3
    said = [{"role": "user", "content": "the fox"}, {"role": "assistant", "content": reply}]
    lines = [json.dumps({"messages": said}) for _ in range(12)]
    chats.write_text("\n".join(lines), encoding="utf-8")
    made = make(target, out, 0.2, begin=str(head), chats=chats)
    assert made.steps > made.steps_before == 90
    assert {*made.before} == {*made.reached} == {"greedy", "temperature 1"}
    assert read_card(out).greedy == made.reached["greedy"]
    assert sorted(file.name for file in (out / WORK).iterdir()) == ["distill.json", "lock"], "no text is left"
    assert loaded(target, out).parts["head"] is not None
    chats.write_text(lines[0], encoding="utf-8")
    with pytest.raises(EngineError, match="fewer than two chats"):
        make(target, tmp_path / "none", begin=str(head), chats=chats)


def test_chats_that_are_deleted_between_two_calls_are_not_learnt_from(
    target: Path, head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "LEAST_OF_CHATS", 30)
    corpus = Corpus(tmp_path / "out" / WORK)
    chats = tmp_path / "chats.jsonl"
    said = [{"role": "user", "content": "the fox"}, {"role": "assistant", "content": "the lazy dog sleeps " * 8}]
    seen = []
    for number in (9, 3):
        chats.write_text("\n".join([json.dumps({"messages": said})] * number), encoding="utf-8")
        monkeypatch.setattr(training, "acceptance", lambda *_: 1 / 0)  # ends as a kill does, with text and training
        with pytest.raises(ZeroDivisionError):
            make(target, tmp_path / "out", 0.1, begin=str(head), chats=chats)
        seen.append(sum(1 for _ in corpus.conversations()))
    assert seen == [8, 2]
