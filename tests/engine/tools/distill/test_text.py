"""The tokens that a draft can draft, and how long the conversations are that it learns from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specchat.engine import EngineError
from specchat.engine.tools.distill import DistillOptions, text
from specchat.engine.tools.distill.corpus import Conversation, Corpus
from specchat.engine.tools.distill.work_folder import WORK, WorkFolder
from tests.engine.tiny import EOS, tiny_model


def corpus_of(folder: Path, tokens: list[int]) -> Corpus:
    """A text that is all of the target's own."""
    corpus, size = Corpus(folder), len(tokens)
    sampled = torch.ones(size, dtype=torch.bool)
    corpus.add([Conversation(torch.tensor(tokens).int(), sampled, torch.zeros(size, 1), torch.zeros(size))])
    return corpus


def chosen(corpus: Corpus, before: torch.Tensor | None = None) -> list[int]:
    options = DistillOptions(Path(), "tiny", Path())
    return text.draft_vocabulary(options, tiny_model(), corpus, before)[1].tolist()  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_LEAST_TOKENS", 1)
    monkeypatch.setattr(text, "_VOCABULARY", (100, 4))


def test_what_ends_a_reply_is_drafted_however_rare_it_is(tmp_path: Path) -> None:
    assert chosen(corpus_of(tmp_path, [9] * 5 + [7] * 4 + [5] * 3 + [3] * 2)) == [5, 7, 9, EOS]


def test_a_vocabulary_chosen_before_yields_to_what_is_clearly_more_frequent(tmp_path: Path) -> None:
    before = torch.tensor([20, 30, 40, 50, 60])
    corpus = corpus_of(tmp_path, [9] * 5 + [7] * 3 + [5] * 1 + [40])
    assert chosen(corpus, before) == [7, 9, 40, EOS]


def test_text_of_another_kind_or_of_the_same_folder_is_refused(tmp_path: Path) -> None:
    with WorkFolder.open(tmp_path / "medusa" / WORK, "tiny", "mark", "medusa"):
        pass
    with WorkFolder.open(tmp_path / "head" / WORK, "tiny", "mark") as standing:
        for name, words in (("medusa", "of the kind medusa, not eagle"), ("head", "is read anyway"), ("x", "no text")):
            with pytest.raises(EngineError, match=words):
                standing.require_text(tmp_path / name)
