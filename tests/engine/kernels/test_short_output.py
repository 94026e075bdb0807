"""An output layer in short codes: what the likeliest tokens get is what the layer itself gives them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from specchat.engine.kernels.decoder import Decoder, TokenLayout
from specchat.engine.kernels.decoder_weights import DecoderWeights
from specchat.engine.kernels.library import KernelError, Library
from specchat.engine.kernels.packed_matrix import PackedMatrix
from specchat.engine.models.packed import names
from specchat.engine.models.packed.load import PackedModel
from specchat.engine.models.packed.quantize import quantized_rows
from tests.engine.drafters.models import pack
from tests.engine.families import write_family
from tests.engine.kernels.conftest import variants
from tests.engine.kernels.variants import Variant, use

TOKENS, WORDS, PANEL, AGAIN = range(3, 40), 1003, 16, 8
"""The last panel has fewer rows, and is in a block of fewer panels."""


@pytest.fixture(params=["llama", "gemma2"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> PackedModel:
    """With 8-bit codes; the logits of Gemma 2 have a cap."""
    return pack(write_family(request.param, tmp_path / "model", vocab_size=WORDS), tmp_path)


def copy_of(matrix: PackedMatrix) -> PackedMatrix:
    rows = torch.arange(matrix.rows)
    return quantized_rows(lambda some: torch.from_numpy(matrix.rows_of(some.numpy())), rows, "q4").matrix


def weights_of(model: PackedModel, output: PackedMatrix, exact: PackedMatrix | None = None) -> DecoderWeights:
    same = model.decoder(64, 64).weights
    norm = model.weights.vector(model.described.name(names.FINAL_NORM))
    ropes = [rotary.table(64, 64) for rotary in model.described.rotaries]
    return DecoderWeights(same.shape, same.layers, same.embedding, output, norm, ropes, exact=exact)


def logits_of(weights: DecoderWeights, threads: int = 2) -> Tensor:
    """After each of the tokens of a text [n, V]."""
    decoder, tables = Decoder(weights), np.arange(2, dtype=np.int32)[None]
    heads, size = weights.layers[0].shape.cached
    keys, values = ([torch.zeros(2, heads, *each).half() for _ in weights.layers] for each in ((size, 32), (32, size)))
    decoder.attach(tables, keys, values)
    chain = TokenLayout.chains([0], [0], [len(TOKENS)])
    return decoder.run(TOKENS, chain, range(len(TOKENS)), threads)[0].clone()


@pytest.mark.parametrize("variant", variants())
def test_panels_with_the_largest_logits_are_scored_again(
    kernels: Library, model: PackedModel, variant: Variant
) -> None:
    use(kernels, variant)
    copy = copy_of(model.output)
    own, short = logits_of(weights_of(model, model.output)), logits_of(weights_of(model, copy))
    mixed = logits_of(weights_of(model, copy, model.output))
    padded = torch.nn.functional.pad(short, (0, -WORDS % PANEL), value=-torch.inf)
    panels = padded.unflatten(1, (-1, PANEL)).amax(-1).topk(AGAIN).indices
    again = torch.zeros(len(TOKENS), padded.shape[1] // PANEL, dtype=torch.bool).scatter_(1, panels, True)
    again = again.repeat_interleave(PANEL, 1)[:, :WORDS]
    assert torch.equal(mixed, torch.where(again, own, short))
    assert not torch.equal(own, short)
    assert torch.equal(mixed.argmax(-1), own.argmax(-1))
    assert torch.equal(logits_of(weights_of(model, copy, model.output), threads=1), mixed)


def test_a_layer_of_another_size_is_refused(model: PackedModel) -> None:
    with pytest.raises(KernelError, match="which is not vocabulary x hidden"):
        weights_of(model, model.output, copy_of(model.output.part(0, 16)))
