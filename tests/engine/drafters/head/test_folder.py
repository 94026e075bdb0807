"""Heads on disk: what their cards say becomes of their weights."""

import json
import shutil
from pathlib import Path

import pytest

from specchat.engine.config import EngineConfig
from specchat.engine.drafters.head.folder import CARD, read_card
from specchat.engine.errors import EngineError
from specchat.engine.kernels.library import missing
from specchat.engine.kernels.packed_matrix import Format, packed_bytes
from specchat.engine.progress import ignore_progress
from specchat.engine.worker.assembly import Assembly, assemble

SHIPPED = Path(__file__).parents[4] / "assets" / "heads" / "smollm2-135m"


def head_with(folder: Path, **fields: object) -> Path:
    """The head that comes with specchat, with other fields on its card."""
    shutil.copytree(SHIPPED, folder)
    card = json.loads((folder / CARD).read_text())
    (folder / CARD).write_text(json.dumps({**card, **fields}))
    return folder


def assembled(default_model: Path, head: Path) -> Assembly:
    return assemble(EngineConfig("smollm2-135m", default_model.parent, context=64, draft=str(head)), ignore_progress)


@pytest.mark.skipif(missing() is not None, reason=missing() or "")
@pytest.mark.parametrize(("codes", "bits"), [("q8", Format.Q8), ("q4", Format.Q4)])
def test_codes_are_those_of_the_head_s_training(default_model: Path, tmp_path: Path, codes: str, bits: Format) -> None:
    assembly = assembled(default_model, head_with(tmp_path / "head", codes=codes))
    head = assembly.parts["head"].head
    assert {layer.matrix.format for layer in (head.fuse, head.qkv, head.out, head.gate_up, head.down)} == {bits}  # type: ignore[union-attr]
    assert assembly.score_bytes == packed_bytes(bits, len(assembly.parts["head"].vocabulary), head.shape.hidden)


def test_cards_of_before_have_eight_bits(tmp_path: Path) -> None:
    folder = head_with(tmp_path / "head")
    card = json.loads((folder / CARD).read_text())
    card.pop("codes", None)
    (folder / CARD).write_text(json.dumps({**card, "format": 1}))
    assert read_card(folder).codes == "q8"


def test_codes_that_are_not_there_are_refused(default_model: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"is broken \(its codes are 'q2', and not one of q8, q4\)"):
        assembled(default_model, head_with(tmp_path / "head", codes="q2"))


def test_a_newer_format_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="is a draft head of a newer specchat: update specchat"):
        read_card(head_with(tmp_path / "head", format=99))
