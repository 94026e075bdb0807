"""The network of block drafters: in every published form, what it says is what its authors' definition says."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from specchat.engine.drafters.block.network import BlockNetwork
from specchat.engine.drafters.block.reading import load_block
from specchat.engine.models.load import LoadedModel
from tests.engine.block_drafters import KINDS, draft_in_plain_words, write_block
from tests.engine.published_heads import TARGETS, hidden_states

TEXT = [(7 * i + 3) % 250 for i in range(24)]


@torch.inference_mode()
def outcomes(network: BlockNetwork, target: LoadedModel, text: list[int]) -> Tensor:
    """What the rows of a block after a text are scored with [R, d]; the context is read in two parts."""
    hidden, shape = hidden_states(target, text[:-1]), network.shape
    states = torch.cat([hidden[depth] for depth in network.taps], -1)[None]
    columns = torch.arange(len(text) - 1)[None]
    parts = [network.context(states[:, part], network.turns(columns[:, part])) for part in (slice(9), slice(9, None))]
    keys, values = (torch.cat(each, 1) for each in zip(*parts, strict=True))
    end = torch.tensor([len(text) - 1])
    tokens = torch.tensor([[text[-1], *[shape.mask] * (shape.rows - 1)]])
    embedded = functional.embedding(tokens, target.model.get_input_embeddings().weight)
    turns = network.turns(end[:, None] + torch.arange(shape.rows))
    return network.block(embedded, turns, keys, values, network.visibility(end, columns))[0]


@pytest.mark.parametrize("target_kind", TARGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_logit_is_that_of_the_published_definition(kind: str, target_kind: str, tmp_path: Path) -> None:
    target = TARGETS[target_kind]()
    loaded = load_block(write_block(tmp_path / "drafter", kind), target)
    network, output = loaded.network, target.model.get_output_embeddings().weight[loaded.vocabulary]
    drafted = [(31 * i + 5) % 250 for i in range(network.shape.proposals)]
    rows = outcomes(network, target, TEXT)[network.shape.first :]
    expected, chances = draft_in_plain_words(KINDS[kind](), target, TEXT, drafted)
    assert len(rows) == len(expected)
    for row, logits, chance, token in zip(rows, expected, chances, [TEXT[-1], *drafted], strict=False):
        previous = torch.tensor([token])
        found = network.after(network.logits(row[None] @ output.T), row[None], previous)[0]
        torch.testing.assert_close(found.clamp(min=-1e4), logits.clamp(min=-1e4), rtol=1e-3, atol=1e-3)
        own = network.confidence(row[None], previous)
        assert (own is None) == (chance is None)
        if own is not None:
            assert float(own) == pytest.approx(chance, abs=1e-4)
