"""The assistant of Muse Glimmer, which transformers writes: a DFlash drafter that leaves sizes to its target."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModel, cache_utils

from specchat.engine.drafters.block.reading import load_block
from specchat.engine.drafters.published.find import find_published, kind_of
from specchat.engine.models.load import LoadedModel, load_model
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import ignore_progress, silence_transformers
from specchat.engine.registry import BLOCK
from tests.engine.drafters.block.test_network import TEXT, outcomes
from tests.engine.models.test_image_text import write
from tests.engine.published_heads import hidden_states

KIND = "muse_glimmer_assistant"
LAYERS = (0, 2)
"""Of the target, whose outputs it reads."""
pytestmark = pytest.mark.skipif(KIND not in CONFIG_MAPPING, reason="transformers does not know it")


def write_assistant(folder: Path) -> Path:
    silence_transformers()
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16, "sliding_window": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
    config = CONFIG_MAPPING[KIND](
        **sizes, **heads, pad_token_id=0, block_size=5, mask_token_id=319, target_layer_ids=list(LAYERS)
    )
    torch.manual_seed(1)
    AutoModel.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture
def target(tiny_model: Callable[..., Path], tmp_path: Path) -> LoadedModel:
    folder = write("muse-glimmer", tiny_model(), tmp_path / "target")
    return load_model(folder, torch.device("cpu"), torch.float32, ignore_progress)


@torch.inference_mode()
def test_it_drafts_as_in_transformers(target: LoadedModel, tmp_path: Path) -> None:
    folder = write_assistant(tmp_path / "assistant")
    assert find_published(str(folder), ModelStore(tmp_path / "models"), ignore_progress) == folder
    assert kind_of(folder) is BLOCK
    found = outcomes(load_block(folder, target).network, target, TEXT)
    hidden, block = hidden_states(target, TEXT[:-1]), torch.tensor([[TEXT[-1], *[319] * 4]])
    assistant = AutoModel.from_pretrained(folder).eval()
    cache = cache_utils.DFlashCache(config=assistant.config)
    cache.set_previous_accepted_tokens(len(TEXT) - 1)
    expected = assistant(
        noise_embeds=torch.nn.functional.embedding(block, target.model.get_input_embeddings().weight),
        context_hidden_states=torch.cat([hidden[layer + 1] for layer in LAYERS], -1)[None],
        attention_mask=torch.ones(1, len(TEXT) + 4),
        cache=cache,
    )
    torch.testing.assert_close(found, expected.last_hidden_state[0], rtol=1e-4, atol=1e-4)
