"""Several draft models by name: what is merged, and what cannot be, in one sentence."""

from collections.abc import Callable
from pathlib import Path

import pytest

from specchat.engine import EngineConfig, EngineError
from specchat.engine.config import SHIPPED_HEADS
from specchat.engine.progress import ignore_progress
from specchat.engine.worker.assembly import assemble

Tiny = Callable[..., Path]


def test_names_stand_between_commas_but_for_a_path_that_has_one(tmp_path: Path) -> None:
    there = tmp_path / "a,b"
    there.mkdir()
    assert EngineConfig("t").drafts == ()
    assert EngineConfig("t", draft="x").drafts == ("x",)
    assert EngineConfig("t", draft="x, y,").drafts == ("x", "y")
    assert EngineConfig("t", draft=str(there)).drafts == (str(there),)


@pytest.mark.slow
@pytest.mark.model
def test_what_cannot_be_merged_is_one_sentence(tiny_model: Tiny, default_model: Path) -> None:
    target, draft = tiny_model(), tiny_model()
    head = next(folder for folder in SHIPPED_HEADS.iterdir() if folder.is_dir())
    for names, sentence in (
        ([draft] * 5, "5 draft models are named, and at most 4 can be merged"),
        ([draft, head], f"{head} is not a draft model, and only draft models are merged"),
        (
            [draft, default_model],
            f"{default_model} cannot be one of the drafts: the draft's vocabulary is not the target's",
        ),
        ([draft, "nowhere"], "no model is called 'nowhere'"),
    ):
        wanted = EngineConfig(str(target), draft=",".join(map(str, names)), slots=1, context=64)
        with pytest.raises(EngineError) as raised:
            assemble(wanted, ignore_progress)
        assert sentence in str(raised.value)
