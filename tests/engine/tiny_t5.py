"""T5 models of random weights with a byte tokenizer, in memory and as folders."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import processors
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from specchat.engine.models.load import LoadedModel
from tests.engine.tiny import byte_tokenizer

PAD, END = 0, 1
VOCABULARY = 272
CONTEXT = 160


def tiny_t5_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, after padding and end; the end token closes every source, as in T5's own tokenizer."""
    tokenizer = byte_tokenizer("<pad>", "</s>")
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", END)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>")


def tiny_t5_network(seed: int = 3, *, gated: bool = False, noise: float = 0.0, **config: Any) -> Any:
    """Random weights in float32, whose choices are clear and depend on the source.

    Args:
        seed: of the weights.
        gated: as T5 1.1 and Flan-T5 are, with a separate output layer; else as the first T5.
        noise: what is added to the decoder's matrices, by another seed, for a draft that mostly agrees.
        config: of transformers' T5Config.
    """
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_decoder_layers": 2,
        "num_heads": 4, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20,
        "n_positions": CONTEXT, "decoder_start_token_id": PAD, "pad_token_id": PAD, "eos_token_id": END,
    }  # fmt: skip
    if gated:
        settings |= {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = T5ForConditionalGeneration(T5Config(**settings | config)).eval().requires_grad_(False)
        if gated:
            network.lm_head.weight = torch.nn.Parameter(torch.randn(VOCABULARY, 32), requires_grad=False)
        for stack in (network.encoder, network.decoder):
            stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight.normal_(std=2)
        for block in network.decoder.block:  # layers that outweigh the embedding, or each token would repeat itself
            attention, source, dense = block.layer[0].SelfAttention, block.layer[1].EncDecAttention, block.layer[2]
            for matrix in (attention.o, source.o, dense.DenseReluDense.wo):
                matrix.weight.mul_(2 if gated else 16)
        network.decoder.final_layer_norm.weight.mul_(1 if gated else 5)
        torch.manual_seed(seed + 1)
        for weight in network.decoder.block.parameters():
            weight.add_(noise * weight.std() * torch.randn_like(weight) if weight.dim() > 1 else 0)
    return network


def tiny_t5(seed: int = 3, *, gated: bool = False, **config: Any) -> LoadedModel:
    """A loaded T5 of `tiny_t5_network`."""
    network = tiny_t5_network(seed, gated=gated, **config)
    size, ends = sum(weight.nbytes for weight in network.parameters()), frozenset({END})
    sizes = (ends, CONTEXT, VOCABULARY, size)
    backend = "specchat.engine.research.encoder_decoder"
    return LoadedModel(network, tiny_t5_tokenizer(), "tiny-t5", *sizes, start=PAD, backend=backend)


def write_tiny_t5(
    folder: Path, seed: int = 3, *, gated: bool = False, template: str | None = None, **config: Any
) -> Path:
    """Write one as a folder; give the folder back."""
    tiny_t5_network(seed, gated=gated, **config).save_pretrained(folder)
    tokenizer = tiny_t5_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder
