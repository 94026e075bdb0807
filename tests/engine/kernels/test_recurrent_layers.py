"""Recurrent layers (LFM2, Qwen3.5, Granite 4), some next to mixtures of experts.

The same bits after every rollback, in any chunks and batches, on any processor.
"""

import pytest
import torch
from torch import Tensor

from specchat.engine.backends.packed import PackedBackend
from specchat.engine.kernels.library import Library
from specchat.engine.models.packed.load import PackedModel
from tests.engine.cache.copies import copy_text
from tests.engine.drafters.models import packed_family
from tests.engine.kernels.conftest import variants
from tests.engine.kernels.variants import Variant, use

TOKENS = torch.arange(3, 123) * 7 % 317 + 3


@pytest.fixture(scope="module", params=["lfm2-moe", "qwen3.5-moe", "granite-hybrid"])
def model(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> PackedModel:
    return packed_family(request.param, tmp_path_factory.mktemp("recurrent"))


@pytest.fixture(scope="module")
def whole(model: PackedModel) -> Tensor:
    """Logits after every token, each fed by itself."""
    backend = PackedBackend(model, 1, 200, 17)
    return torch.cat([backend.forward(TOKENS[None, i : i + 1], [0], [i])[0] for i in range(len(TOKENS))])


@pytest.mark.parametrize("variant", variants())
def test_instruction_sets_agree(kernels: Library, variant: Variant, model: PackedModel, whole: Tensor) -> None:
    use(kernels, variant)
    assert torch.equal(PackedBackend(model, 1, 200, 17).forward(TOKENS[None], [0], [0])[0], whole)


@pytest.mark.parametrize("chunk", [1, 2, 7, 47, 100])
def test_a_prompt_may_be_read_in_any_chunks(model: PackedModel, whole: Tensor, chunk: int) -> None:
    backend = PackedBackend(model, 2, 200, 17)
    for start in range(0, 100, chunk):
        backend.prefill(TOKENS[None, start : min(start + chunk, 100)], [1], [start])
    assert torch.equal(backend.forward(TOKENS[None, 100:], [1], [100])[0], whole[100:])


@pytest.mark.parametrize("kept", range(18))
def test_any_number_of_tokens_can_be_taken_back(model: PackedModel, whole: Tensor, kept: int) -> None:
    backend = PackedBackend(model, 2, 200, 17)
    backend.prefill(TOKENS[None, :60], [0], [0])
    other = torch.cat([TOKENS[60 : 60 + kept], TOKENS[: 17 - kept]])[None]
    for _ in range(2):  # a pass may be run again
        backend.forward(other, [0], [60])
    start = 60 + kept
    assert torch.equal(backend.forward(TOKENS[None, start : start + 5], [0], [start])[0], whole[start : start + 5])


def test_rows_of_a_ragged_pass_do_not_change_each_other(model: PackedModel, whole: Tensor) -> None:
    backend, lengths = PackedBackend(model, 4, 200, 17), [90, 3, 58]
    fed = torch.stack([torch.cat([TOKENS[:n], TOKENS[: 90 - n]]) for n in lengths])
    backend.prefill(fed, [2, 0, 3], [0, 0, 0], lengths)
    found = backend.forward(torch.stack([TOKENS[n : n + 5] for n in lengths]), [2, 0, 3], lengths)
    for row, n in zip(found, lengths, strict=True):
        assert torch.equal(row, whole[n : n + 5])


def test_a_text_goes_on_from_a_snapshot_or_a_copy(model: PackedModel, whole: Tensor) -> None:
    backend = PackedBackend(model, 2, 200, 17)
    cache = backend.cache
    backend.prefill(TOKENS[None, :10], [0], [0])
    backend.prefill(TOKENS[None, 10:40], [0], [10])
    for start in range(40, 110):
        backend.forward(TOKENS[None, start : start + 1], [0], [start])
    backend.prefill(TOKENS[None, 105:], [0], [105])  # the next turn
    has_state = model.shape.delta_value_heads > 0  # which has read the whole prompt
    recent = (40, 105, 105) if has_state else (104, 105, 115)
    states = cache.states
    assert [states.reusable(0, n) for n in (30, 50, 104, 105, 115, 130)] == [0, 40, *recent, 120]
    copy_text(cache, 0, 1, 105)
    assert [states.reusable(1, n) for n in (30, 50, 104, 120)] == [0, 40, 40, 105]
    for slot, start in ((1, 105), (1, 40), (0, recent[0]), (0, 40)):
        assert torch.equal(
            backend.forward(TOKENS[None, start : start + 5], [slot], [start])[0], whole[start : start + 5]
        )
    assert states.reusable(0, 105) == 45
    cache.clear(0)
    assert states.reusable(0, 105) == 0
    assert 0 < cache.slots * cache.state_bytes < cache.bytes
