"""A random-weight model with a byte tokenizer, small enough to run hundreds of rounds in a second."""

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specchat.engine import (
    Admitted,
    Died,
    Engine,
    EngineConfig,
    Event,
    Finished,
    Message,
    Notice,
    Outbox,
    Request,
    Round,
)
from specchat.engine.drafters.head.folder import LoadedHead
from specchat.engine.drafters.head.network import DraftHead
from specchat.engine.models.load import LoadedModel
from specchat.engine.progress import Progress
from specchat.engine.research.pass_drafter import LookAhead
from specchat.engine.research.tables import LoadedTables
from specchat.engine.tools.distill.eagle import head_shape
from specchat.engine.tools.distill.tables import TokenCounter
from specchat.engine.worker.assembly import Assemble, Assembly, assemble_loaded

Kind = TypeVar("Kind")
EOS = 256
VOCABULARY = 260
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "eos_token_id": EOS,
}  # fmt: skip
"""What networks in memory have in common."""
REPETITIVE = ("one two one two one", "a b a b a b a b", "speculative decoding")
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"


def byte_tokenizer(*before: str) -> Tokenizer:
    """One token per byte, after others."""
    alphabet = [*before, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, and an end of text."""
    fast = PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), eos_token="<eos>")
    fast.chat_template = TEMPLATE
    return fast


def tiny_model(
    seed: int = 0, hidden: int = 32, layers: int = 2, sharpness: float = 12.0, width: int = VOCABULARY
) -> LoadedModel:
    """A Llama of random weights in float32; `sharpness` spreads its logits so that its choices are clear."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": layers}
    network = LlamaForCausalLM(LlamaConfig(**SIZES | sizes | {"vocab_size": width})).eval().requires_grad_(False)
    network.lm_head.weight.mul_(sharpness)
    return in_memory(network)


def in_memory(network: Any, name: str = "tiny") -> LoadedModel:
    """A network of `SIZES` as if it had been loaded."""
    size = sum(weight.nbytes for weight in network.parameters())
    return LoadedModel(network, tiny_tokenizer(), name, frozenset({EOS}), 512, network.config.vocab_size, size)


def reciting_model(tokenizer: Any, text: Sequence[int]) -> LoadedModel:
    """A network that writes each of these tokens, which all differ, after the one before it, and then an end.

    The first of them is the last one of the prompt.
    """
    torch.manual_seed(0)
    size = len(tokenizer)
    shape = SIZES | {"hidden_size": 128, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": size}
    network = LlamaForCausalLM(LlamaConfig(**shape)).eval().requires_grad_(False)
    for layer in network.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    embedded = network.model.embed_tokens.weight.normal_()
    network.lm_head.weight.zero_()
    network.lm_head.weight[[*text[1:], EOS]] = embedded[list(text)]
    made = in_memory(network)
    return replace(made, tokenizer=tokenizer)


def tiny_head(target: LoadedModel, seed: int = 0, vocabulary: int = 200) -> LoadedHead:
    """A head of random weights that can draft `vocabulary` of the target's tokens, spread over all of them."""
    torch.manual_seed(seed)
    head = DraftHead(head_shape(target.model, target.name)).eval().requires_grad_(False)
    ids = torch.randperm(target.vocab_size)[:vocabulary].sort().values
    return LoadedHead(head, ids, "tiny head", sum(weight.nbytes for weight in head.parameters()))


def tiny_tables(tokens: Iterable[int], vocabulary: int = VOCABULARY) -> LoadedTables:
    """Tables that were counted in a text; one of bytes for the tiny model."""
    counter = TokenCounter(vocabulary)
    counter.add(np.array(list(tokens), np.int64))
    return LoadedTables(counter.counts(), "tables")


@contextmanager
def tiny_engine(
    target: LoadedModel | None = None,
    draft: LoadedModel | None = None,
    head: LoadedHead | None = None,
    slots: int = 4,
    chunk: int = 32,
    queue: int = 1024,
    assemble: Assemble | None = None,
    look_ahead: LookAhead | None = None,
    tables: LoadedTables | None = None,
    more: Sequence[LoadedModel] = (),
    cache_memory: float | None = None,
    kept: Path | None = None,
    cache_type: str = "f16",
    seed: int | None = None,
    context: int = 256,
) -> Iterator[Engine]:
    """A running engine on tiny models, or on what `assemble` puts together."""

    def of_models(config: EngineConfig, progress: Progress) -> Assembly:  # noqa: ARG001
        research = {"look_ahead": look_ahead, "tables": tables}
        return assemble_loaded(config, target or tiny_model(), draft, head=head, more=more, **research)

    sizes: dict[str, Any] = {"slots": slots, "context": context, "queue": queue, "prefill_chunk": chunk}
    sizes |= {"cache_memory": cache_memory, "cache_type": cache_type, "seed": seed}
    with started(EngineConfig("tiny", Path(), kept=kept, **sizes), assemble or of_models) as engine:
        yield engine


@contextmanager
def started(config: EngineConfig, assemble: Assemble | None = None) -> Iterator[Engine]:
    """An engine that is ready."""
    with Engine(config, assemble) as engine:
        engine.wait_ready(120)
        yield engine


def ask(text: str, name: str = "r", **options: object) -> Request:
    """A request of one user turn."""
    return Request(name, messages=(Message("user", text),), **options)  # type: ignore[arg-type]


def said_while_loading(engine: Engine) -> list[str]:
    """The notices of the engine's start: they follow `Ready`, and all are there once a request has been served."""
    list(engine.stream(Request("served", prompt_ids=(97,), max_tokens=1, drafter="none")))
    return notices_of(engine.drain())


def last_words(engine: Engine) -> str:
    """Why the engine has ended, which it says once every request has."""
    return next_of(engine.outbox, Died).message


def rounds_of(events: Iterable[object]) -> list[Round]:
    return [event for event in events if isinstance(event, Round)]


def notices_of(events: Iterable[object]) -> list[str]:
    return [event.text for event in events if isinstance(event, Notice)]


def admitted(events: Iterable[object]) -> Admitted:
    return next(event for event in events if isinstance(event, Admitted))


def next_of(box: Outbox, kind: type[Kind]) -> Kind:
    """The next event of a kind; those before it are taken too."""
    while not isinstance(event := box.get(120), kind):
        assert event is not None, "no event for two minutes"
    return event


def ids_of(events: Iterable[object]) -> list[int]:
    """The reply's tokens."""
    return [token for event in rounds_of(events) for token in event.emitted]


def text_of(events: list[Event]) -> str:
    """The reply's text."""
    return "".join(event.text for event in rounds_of(events)) + events[-1].tail


def ended(box: Outbox) -> list[Event]:
    """Events up to the last one of a request."""
    events: list[Event] = []
    while not events or not isinstance(events[-1], Finished):
        event = box.get(120)
        assert event is not None, "no event for two minutes"
        events.append(event)
    return events


def run_together(engine: Engine, requests: Sequence[Request], batch: int = 0) -> list[list[Event]]:
    """Submit all at once, or so many at a time, and collect each one's events."""
    if batch:
        parts = [requests[first : first + batch] for first in range(0, len(requests), batch)]
        return [events for part in parts for events in run_together(engine, part)]
    boxes = [Outbox() for _ in requests]
    for request, box in zip(requests, boxes, strict=True):
        engine.submit(request, box)
    return [ended(box) for box in boxes]


def assert_drafters_agree(
    engine: Engine, drafters: Iterable[str], texts: Sequence[str] = REPETITIVE, gamma: int | None = 4
) -> list[list[int]]:
    """Greedy replies, several at once, are with each drafter those without drafts, one after the other: these."""
    plain = [ids_of(engine.stream(ask(text, drafter="none", max_tokens=28))) for text in texts]
    for drafter in drafters:
        requests = [ask(t, f"{drafter}{i}", drafter=drafter, gamma=gamma, max_tokens=28) for i, t in enumerate(texts)]
        assert [ids_of(events) for events in run_together(engine, requests)] == plain, drafter
    return plain


def assert_the_same_in_a_batch(engine: Engine, requests: list[Request]) -> None:
    """Each reply has the same tokens alone and together with the others, in whatever order they come."""
    alone = [ids_of(engine.stream(request)) for request in requests]
    order = list(range(len(requests)))
    random.Random(1).shuffle(order)
    together = run_together(engine, [requests[i] for i in order])
    for i, events in zip(order, together, strict=True):
        assert ids_of(events) == alone[i]
