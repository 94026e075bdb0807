"""Training that begins with a finished draft: its weights, its card, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from specchat.engine import EngineError
from specchat.engine.drafters.head.folder import (
    CARD,
    WEIGHTS,
    HeadAcceptance,
    HeadCard,
    read_card,
    save_head,
)
from specchat.engine.drafters.head.network import DraftHead
from specchat.engine.models.load import LoadedModel, load_model
from specchat.engine.progress import ignore_progress
from specchat.engine.tools.distill import Distilled, DistillOptions, distill, text, trainer, training
from specchat.engine.tools.distill.corpus import Corpus
from specchat.engine.tools.distill.initial import head_shape
from specchat.engine.tools.distill.parallel import MedusaRecipe, PassRecipe
from specchat.engine.tools.distill.work_folder import WORK, WorkFolder
from tests.engine.tiny import tiny_model
from tests.tiny_model import write_tiny_model

_REACHED = HeadAcceptance(0.5, (0.5,), 1.5)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture(scope="module")
def model(target: Path) -> LoadedModel:
    return load_model(target, torch.device("cpu"), torch.float32, ignore_progress)


@pytest.fixture
def head(model: LoadedModel, tmp_path: Path) -> Path:
    """A head of random weights, on a card of its own."""
    return write_head(tmp_path / "finished", model, 0)


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second passes with each look at the clock; little text, and short replies in the evaluation."""
    ticks = count()
    for module in (text, trainer):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(ticks) / 2))
    monkeypatch.setattr(text, "_LEAST_TOKENS", 300)
    monkeypatch.setattr(trainer, "LENGTH", 40)
    monkeypatch.setattr(training, "_MAX_TOKENS", 2)


def write_head(folder: Path, model: LoadedModel, seed: int) -> Path:
    torch.manual_seed(seed)
    shape = head_shape(model.model, model.name)
    card = HeadCard(model.name, model.fingerprint, shape, 7000, 90, 5.0, 4, _REACHED, _REACHED)
    save_head(folder, DraftHead(shape), torch.arange(3, 203), card)
    return folder


def options(target: Path, out: Path, minutes: float = 0.1, **more: object) -> DistillOptions:
    return DistillOptions(models=out.parent / "models", target=str(target), out=out, minutes=minutes, **more)  # type: ignore[arg-type]


def test_a_finished_head_is_where_training_begins_and_stays_as_it_is(
    target: Path, head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "AGAIN", 0.0)
    before, out = {file.name: file.read_bytes() for file in head.iterdir()}, tmp_path / "head"
    made = distill(options(target, out, begin=str(head)), ignore_progress)
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
    distill(options(target, first, begin=str(head)), ignore_progress)
    made = distill(options(target, second, begin=str(head), text=(first,)), ignore_progress)
    assert made.tokens == read_card(first).tokens
    assert not Corpus(second / WORK).shards
    assert read_card(second).steps > 90
    shutil.rmtree(head)
    again = distill(options(target, second, 0.2, text=(first,)), ignore_progress)
    assert again.steps > made.steps, "it goes on with the copy of what it began with"
    assert again.steps_before == 90


def test_what_does_not_fit_is_refused_and_nothing_is_written(target: Path, head: Path, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other", seed=5)
    out = tmp_path / "out"
    for start, kind, its_target, goal, words in (
        (head, "eagle", other, out, "made for tiny, with other weights than other has"),
        (head, "medusa", target, out, "holds no draft of the kind medusa"),
        (head, "eagle", target, head / "sub", "which stays as it is"),
        (head, "eagle", target, head, "holds something else already"),
        (tmp_path / "nowhere", "eagle", target, out, "there is no folder .*nowhere to begin from"),
    ):
        with pytest.raises(EngineError, match=words):
            distill(options(its_target, goal, kind=kind, begin=str(start)), ignore_progress)
        assert not out.exists()
    assert sorted(file.name for file in head.iterdir()) == [CARD, WEIGHTS]


def test_a_training_keeps_to_what_it_has_begun_with(model: LoadedModel, head: Path, tmp_path: Path) -> None:
    other, files = write_head(tmp_path / "second", model, 1), (WEIGHTS, CARD)
    work = tmp_path / "out" / WORK
    work.mkdir(parents=True)
    folder = WorkFolder(work, model.name, model.fingerprint)
    with pytest.raises(EngineError, match="holds a training that has not begun with"):
        folder.keep_start(head, files, started=True)
    folder.keep_start(head, files, started=False)
    folder.keep_start(head, files, started=True)
    with pytest.raises(EngineError, match="holds a training that has not begun with"):
        folder.keep_start(other, files, started=False)


@pytest.mark.parametrize("recipe_of", [MedusaRecipe, PassRecipe])
def test_other_kinds_begin_with_what_they_have_saved(
    recipe_of: Callable[[LoadedModel], MedusaRecipe | PassRecipe], tmp_path: Path
) -> None:
    target = tiny_model()
    recipe = recipe_of(target)
    trainee = recipe.trainee(torch.arange(100), None)
    for weight in trainee.network.parameters():
        torch.nn.init.normal_(weight)
    made = Distilled(recipe.noun, target.name, tokens=10, steps=20, minutes=3.0)
    trainee.save(tmp_path / "made", made, target.fingerprint)
    assert all((tmp_path / "made" / name).is_file() for name in recipe.files)
    start = recipe.start(tmp_path / "made")
    assert (start.tokens, start.steps, start.minutes) == (10, 20, 3.0)
    another = recipe.trainee(torch.arange(100), None)
    another.network.load_state_dict(start.weights)
    for one, same in zip(trainee.network.parameters(), another.network.parameters(), strict=True):
        assert torch.equal(one.bfloat16(), same.bfloat16())
    with pytest.raises(EngineError, match="with other weights than tiny has"):
        recipe_of(tiny_model(seed=1)).start(tmp_path / "made")
