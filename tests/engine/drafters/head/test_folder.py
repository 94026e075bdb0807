"""Heads on disk: what their cards say becomes of their weights."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file, save_file

from specchat.engine.config import EngineConfig
from specchat.engine.drafters.head.folder import CARD, HeadAcceptance, read_card
from specchat.engine.errors import EngineError
from specchat.engine.models.load import load_model
from specchat.engine.models.resolve import resolve
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import ignore_progress
from specchat.engine.round import Round
from specchat.engine.tools.distill.eagle import Eagle
from specchat.engine.tools.distill.work_folder import Distilled
from specchat.engine.worker.assembly import Assembly, assemble
from tests.engine.gguf_files import write_gguf, write_source
from tests.engine.tiny import ask, ids_of, said_while_loading, tiny_engine

SHIPPED = Path(__file__).parents[4] / "assets" / "heads" / "smollm2-135m"


def head_with(folder: Path, **fields: object) -> Path:
    """The head that comes with specchat, with other fields on its card."""
    shutil.copytree(SHIPPED, folder)
    card = json.loads((folder / CARD).read_text())
    (folder / CARD).write_text(json.dumps({**card, **fields}))
    return folder


def assembled(default_model: Path, head: Path) -> Assembly:
    return assemble(EngineConfig("smollm2-135m", default_model.parent, context=64, draft=str(head)), ignore_progress)


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
    with pytest.raises(EngineError, match="is of a newer specchat: update specchat"):
        read_card(head_with(tmp_path / "head", format=99))


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model as it was trained, with 8-bit and with 4-bit codes, and another one of the same sizes."""
    folder = tmp_path_factory.mktemp("formats")
    trained, other = (write_source("llama", folder / name) for name in ("trained", "other"))
    weights = load_file(other / "model.safetensors")
    save_file({name: weight.roll(1) for name, weight in weights.items()}, other / "model.safetensors", {"format": "pt"})
    codes = {"q8": GGMLQuantizationType.Q8_0, "q4": GGMLQuantizationType.Q4_1}
    files = {
        name: write_gguf("llama", trained, folder / f"{name}.gguf", lambda *_, kind=codes[name]: kind) for name in codes
    }
    return {"trained": trained, "other": other, **files}


@pytest.fixture(scope="module")
def heads(formats: dict[str, Path]) -> Path:
    """A folder with a head for the 4-bit codes."""
    folder = formats["q4"].with_name("heads")
    save(training_of(formats["q4"]), folder / "head", torch.arange(3, 203))
    return folder


def training_of(model: Path) -> Eagle:
    folder = resolve(str(model), ModelStore(model.with_name("store")), ignore_progress).folder()
    return Eagle(load_model(folder, torch.device("cpu"), torch.float32, ignore_progress))


def save(draft: Eagle, folder: Path, vocabulary: torch.Tensor) -> None:
    draft.begin(vocabulary)
    reached = dict.fromkeys(("greedy", "temperature 1"), HeadAcceptance(0.5, (0.5,), 1.5))
    draft.save(folder, Distilled(draft.noun, draft.model.name, 7000, 90, 5.0, reached=reached))


def loaded(model: Path, **draft: object) -> Assembly:
    return assemble(EngineConfig(str(model), model.with_name("store"), context=128, **draft), ignore_progress)  # type: ignore[arg-type]


WORSE = "trained for q4, other weights of this model, and drafts worse than one trained for these"


@pytest.mark.parametrize("how", ["named", "found"])
@pytest.mark.parametrize("model", ["trained", "q8", "q4"])
def test_a_head_for_other_codes_drafts_and_says_so(model: str, how: str, formats: dict[str, Path], heads: Path) -> None:
    draft = {"draft": str(heads / "head")} if how == "named" else {"heads": (heads,)}
    with tiny_engine(assemble=lambda *_: loaded(formats[model], **draft)) as engine:
        told = [notice for notice in said_while_loading(engine) if WORSE in notice]
        asked = (ask("one two one two", drafter=drafter, gamma=4, max_tokens=24) for drafter in ("none", "head"))
        plain, drafted = (list(engine.stream(each)) for each in asked)
    assert len(told) == (model != "q4")
    assert ids_of(plain) == ids_of(drafted)
    assert any(isinstance(event, Round) and event.drafted for event in drafted)


def test_a_head_for_the_same_weights_comes_first(formats: dict[str, Path], heads: Path, tmp_path: Path) -> None:
    draft = training_of(formats["q8"])
    start = draft.start(heads / "head")
    assert start.steps == 90
    assert start.vocabulary is not None
    save(draft, tmp_path / "head", start.vocabulary)
    for name in ("q4", "q8"):
        found = loaded(formats[name], heads=(heads, tmp_path))
        assert found.parts["head"].name == f"head for {name}"
        assert not [notice for notice in found.notices if WORSE in notice]


def test_a_head_for_another_model_or_of_old_is_refused(formats: dict[str, Path], heads: Path, tmp_path: Path) -> None:
    old = shutil.copytree(heads, tmp_path / "old")
    card = json.loads((old / "head" / CARD).read_text())
    del card["norms"]
    (old / "head" / CARD).write_text(json.dumps(card))
    for name, folder in (("other", heads), ("q8", old)):
        with pytest.raises(EngineError, match=f"was made for q4, with other weights than {name} has: make one"):
            loaded(formats[name], draft=str(folder / "head"))
        assert not loaded(formats[name], heads=(folder,)).parts
    assert loaded(formats["q4"], draft=str(old / "head")).parts
