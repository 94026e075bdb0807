"""Distilling a tiny target from text to head, cut off and gone on with, and what it refuses."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from specchat.engine import EngineConfig, EngineError
from specchat.engine.drafters.head.folder import CARD, WEIGHTS, read_card
from specchat.engine.drafters.head.network import DraftHead
from specchat.engine.models.load import LoadedModel
from specchat.engine.progress import ignore_progress
from specchat.engine.tools.distill import DistillOptions, corpus, distill, text, trainer
from specchat.engine.tools.distill.eagle import DEPTH, EagleTrainee
from specchat.engine.tools.distill.work_folder import WORK, WorkFolder
from specchat.engine.worker.assembly import assemble
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("target") / "tiny", initializer_range=0.2)


@pytest.fixture(scope="module", autouse=True)
def _little_text() -> Iterator[None]:
    """A tiny target needs little of it, and a busy machine may not write more in seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "_LEAST_TOKENS", 300)
        yield


@pytest.fixture(scope="module")
def made(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head."""
    out = tmp_path_factory.mktemp("heads") / "head"
    distill(options(target, out, 0.08), ignore_progress)
    return out


def options(target: Path, out: Path, minutes: float, **more: object) -> DistillOptions:
    return DistillOptions(models=out.parent / "models", target=str(target), out=out, minutes=minutes, **more)  # type: ignore[arg-type]


@pytest.mark.slow
def test_acceptance_rises_at_every_step(target: Path, tmp_path: Path) -> None:
    made = tmp_path / "head"
    distill(options(target, made, 0.4), ignore_progress)
    assembly = assemble(EngineConfig(str(target), Path(), draft=str(made)), ignore_progress)
    model, loaded = assembly.model, assembly.parts["head"]
    assert isinstance(model, LoadedModel)
    assert loaded is not None
    assert isinstance(loaded.head, DraftHead)
    torch.manual_seed(0)
    shape = loaded.head.shape
    trainee = EagleTrainee(model, shape, DraftHead(shape), loaded.vocabulary)
    training = trainer.Trainer(trainee.network, trainee.loss, model.model.dtype, tmp_path / "training.pt")
    reached = []
    for progress in training.run(corpus.Corpus(made / WORK), 3600):
        reached.append(progress.overlap)
        if progress.steps == 60:
            break
    assert len(reached[0]) == DEPTH
    assert all(last > first + 0.05 for first, last in zip(reached[0], reached[-1], strict=True))


@pytest.mark.slow
def test_the_card_says_where_the_head_comes_from(made: Path, target: Path) -> None:
    card = read_card(made)
    assert card.target == target.name
    assert card.tokens >= 300
    assert card.steps >= 1
    assert 0.05 <= card.minutes < 0.5
    assert card.gamma == 4
    assert 1 <= len(card.greedy.by_position) <= card.gamma
    assert card.greedy.rate > 0.05
    assert card.sampled.emitted_per_round > 1


@pytest.mark.slow
def test_the_engine_drafts_with_it(made: Path, target: Path) -> None:
    assembly = assemble(EngineConfig(str(target), Path(), draft=str(made)), ignore_progress)
    assert list(assembly.drafters)[:3] == ["combined", "head", "suffix"]
    found = assemble(EngineConfig(str(target), Path(), heads=(made.parent,)), ignore_progress)
    assert found.parts["head"] is not None
    assert torch.equal(found.parts["head"].vocabulary, assembly.parts["head"].vocabulary)  # type: ignore[union-attr]


@pytest.mark.slow
def test_another_target_is_refused_by_name(made: Path, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other", seed=5)
    with pytest.raises(EngineError, match=r"made for tiny, with other weights than other has"):
        assemble(EngineConfig(str(other), Path(), draft=str(made)), ignore_progress)
    with pytest.raises(EngineError, match=r"holds the training of a draft head for tiny"):
        distill(options(other, made, 1), ignore_progress)
    # One that is only looked for is passed over.
    assert not assemble(EngineConfig(str(other), Path(), heads=(made.parent,)), ignore_progress).parts


@pytest.mark.slow
@pytest.mark.parametrize("spoil", ["weights", "card", "missing"])
def test_a_broken_folder_is_refused_by_name(made: Path, target: Path, tmp_path: Path, spoil: str) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    for name in (CARD, WEIGHTS):
        (folder / name).write_bytes((made / name).read_bytes())
    if spoil == "weights":
        (folder / WEIGHTS).write_bytes((made / WEIGHTS).read_bytes()[:1000])
    elif spoil == "card":
        (folder / CARD).write_text('{"format": 1, "target"', encoding="utf-8")
    else:
        (folder / WEIGHTS).unlink()
    with pytest.raises(EngineError, match=str(folder)) as raised:
        assemble(EngineConfig(str(target), Path(), draft=str(folder)), ignore_progress)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_more_minutes_go_on_with_the_same_head(made: Path, target: Path) -> None:
    before = read_card(made)
    after = distill(options(target, made, before.minutes + 0.03), ignore_progress)
    assert after.steps > before.steps
    assert after.tokens == before.tokens


@pytest.mark.slow
def test_a_kill_loses_neither_text_nor_training(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "head"
    program = (
        "import sys; from pathlib import Path\n"
        "from specchat.engine.tools.distill import DistillOptions, distill, text, trainer\n"
        "trainer.CHECKPOINT_S = 0.5; text._LEAST_TOKENS = 300\n"
        "from specchat.engine.progress import ignore_progress\n"
        "distill(DistillOptions(Path(sys.argv[2]), sys.argv[1], Path(sys.argv[2]), minutes=0.12), ignore_progress)\n"
    )
    for wanted in ("text-00000.safetensors", "training.pt"):
        process = subprocess.Popen([sys.executable, "-c", program, str(target), str(out)])
        while not (out / WORK / wanted).is_file():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    tokens = corpus.Corpus(out / WORK).tokens
    training = torch.load(out / WORK / "training.pt", weights_only=True)
    spent = json.loads((out / WORK / "distill.json").read_text())["text_seconds"] + training["seconds"]
    assert spent > training["seconds"]
    monkeypatch.setattr(text, "_TEXT_SHARE", 0.0)
    card = distill(options(target, out, spent / 60 + 0.03), ignore_progress)
    assert card.tokens == tokens
    assert card.steps > training["steps"]


def test_too_short_a_budget_names_a_long_enough_one(target: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"tiny has written \d+ tokens .* needs 300: give --minutes \d+ or more"):
        distill(options(target, tmp_path / "head", 1e-6), ignore_progress)


def test_a_target_without_a_chat_template_needs_prompts(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    silent = tiny_model(chat_template=None)
    with pytest.raises(EngineError, match="has no chat template"):
        distill(options(silent, tmp_path / "head", 0.1), ignore_progress)


@pytest.mark.slow
def test_prompts_of_ones_own(target: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("the quick brown fox\n\nthe lazy dog\n", encoding="utf-8")
    made = distill(options(target, tmp_path / "head", 0.06, prompts=file), ignore_progress)
    assert made.reached["greedy"].emitted_per_round > 1
    for name, content in (("empty.txt", ""), ("long.txt", "fox " * 500)):
        (tmp_path / name).write_text(content, encoding="utf-8")
        with pytest.raises(EngineError, match=name):
            distill(options(target, tmp_path / name[:-4], 0.1, prompts=tmp_path / name), ignore_progress)


def test_a_full_disk_is_one_sentence(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(corpus, "save_file", full)
    with pytest.raises(EngineError, match=r"writing training text stopped because the disk of .* is full"):
        distill(options(target, tmp_path / "head", 0.1), ignore_progress)


@pytest.mark.parametrize("kind", ["eagle", "medusa", "pass"])
def test_a_folder_with_something_else_is_left_alone(target: Path, kind: str) -> None:
    before = {file.name: file.read_bytes() for file in target.iterdir()}
    with pytest.raises(EngineError, match=r"holds something else already \(.*json\): distil into another folder"):
        distill(options(target, target, 1, kind=kind), ignore_progress)
    assert {file.name: file.read_bytes() for file in target.iterdir()} == before


def test_a_kind_that_is_not_there_is_refused_by_name(target: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"kind 'owl' is not there: choose one of eagle"):
        distill(options(target, tmp_path / "head", 1, kind="owl"), ignore_progress)


def test_a_second_one_waits_outside(tmp_path: Path) -> None:
    work = tmp_path / "head" / WORK
    with (
        WorkFolder.open(work, "tiny", "mark"),
        pytest.raises(EngineError, match="another specchat is distilling"),
        WorkFolder.open(work, "tiny", "mark"),
    ):
        pass
