"""The example of CONTRIBUTING: a family is described in one file, and runs on the quantised kernels."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from specchat.engine.backends.packed import PackedBackend
from specchat.engine.models import ModelStore, families
from specchat.engine.models.formats import packed_folder
from specchat.engine.models.load import load_model
from specchat.engine.models.packed.decoder_description import OtherFamilyError
from specchat.engine.models.packed.load import load_packed
from specchat.engine.models.resolve import resolve
from specchat.engine.progress import ignore_progress
from tests.engine.families import write_model
from tests.engine.gguf_files import write_gguf

pytestmark = pytest.mark.usefixtures("kernels")
TOKENS = torch.arange(3, 27)[None]


@pytest.fixture
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add the file of the example to the families."""
    text = Path("CONTRIBUTING.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(.*?)```", text.partition("## Adding a model family")[2], re.DOTALL)
    assert block
    (tmp_path / "seed_oss.py").write_text(block[1])
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    families.families.cache_clear()
    yield
    families.families.cache_clear()
    sys.modules.pop(f"{families.__name__}.seed_oss")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model("seed_oss", {"attention_bias": True, "attention_dropout": 0.0}, tmp_path / "model")


@pytest.mark.usefixtures("described")
@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
@torch.inference_mode()
def test_a_file_describes_it(kind: str, folder: Path, tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "store")
    spec = folder if kind == "safetensors" else write_gguf("seed_oss", folder, tmp_path / "model.gguf")
    packed = load_packed(packed_folder(resolve(str(spec), store, ignore_progress), "auto"), ignore_progress)
    assert packed.format == ("F32" if kind == "gguf" else "Q8")
    expected = load_model(folder, torch.device("cpu"), torch.float32, ignore_progress).model(TOKENS).logits
    found = PackedBackend(packed, 1, 64, 17).forward(TOKENS, [0], [0]).log_softmax(-1)
    divergence = (found.exp() * (found - expected.log_softmax(-1))).sum(-1).mean()
    assert divergence < (1e-4 if kind == "gguf" else 0.01)


def test_without_the_file_it_does_not_run(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OtherFamilyError, match="models of type seed_oss do not run on the quantised kernels"):
        packed_folder(resolve(str(folder), ModelStore(tmp_path / "store"), ignore_progress), "auto")
