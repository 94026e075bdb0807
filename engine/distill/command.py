"""Distilling from beginning to end: text, vocabulary, training, evaluation. Each part goes on where it was cut off."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.bench.prompts import Prompt, load_prompts
from engine.cached_model import CachedModel
from engine.config import EngineConfig
from engine.device import pick_device
from engine.disk import require_space
from engine.distill.corpus import Conversation, Corpus
from engine.distill.evaluation import GAMMA, evaluate
from engine.distill.initial import head_shape, initial_head
from engine.distill.prompts import read_prompts
from engine.distill.rollout import Rollout
from engine.distill.standing import Standing
from engine.distill.trainer import Trainer
from engine.distill.turns import Turns
from engine.errors import EngineError
from engine.head.fingerprint import fingerprint
from engine.head.folder import Acceptance, HeadCard, LoadedHead, save_head
from engine.head.network import DraftHead, HeadShape
from engine.loading import LoadedModel, load_model, pick_dtype
from engine.model_store import ModelStore
from engine.progress import Progress
from engine.resolve import resolve

CHECKPOINT = "training.pt"
WORK = ".work"
"""Inside the head's folder: training text and checkpoint. Kept, so that the training can be taken further."""
_TEXT_SHARE = 0.4
"""Of the time, for writing text."""
_VOCABULARY = 8, 4096
"""A head drafts one in so many of the target's tokens, but never fewer than the latter. More would be read from memory
with each of its steps and are seldom written: an eighth of 49,152 is nine tenths of a chat."""
_LEAST_TOKENS = 20_000
"""Less text than this teaches a head nothing that holds on other prompts."""
_SHARD_TOKENS = 8192
_ROWS = {"cpu": 96, "cuda": 512}
"""Conversations written at once."""
_FITTED = 400
"""Conversations that the initial linear maps are fitted to."""
_CONTEXT = 1024
"""Of the engine that evaluates."""
_LENGTH = 384
"""Tokens of one conversation."""
_HELD_OUT = "chat"
"""The prompt set that a head is evaluated on."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line offers.

    Raises:
        EngineError: a value is out of range.
    """

    models: Path
    target: str
    out: Path
    minutes: float = 120.0
    prompts: Path | None = None
    """A file of prompts to reply to, one per line; without it the target writes the questions too."""
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        if not self.minutes > 0:
            raise EngineError(f"minutes is {self.minutes:g}: it must be above 0")


def distill(options: Options, progress: Progress) -> HeadCard:
    """Make a draft head, or take one further that an earlier call has begun.

    Args:
        options: of the command.
        progress: told of the stages target, text, training and evaluation.

    Raises:
        EngineError: the target cannot be served, the folder is another target's, the time is too short, or the disk
            is full.
    """
    device = pick_device(options.device)
    folder = resolve(options.target, ModelStore(options.models), progress)
    model = load_model(folder, device, pick_dtype(options.dtype, device, folder), progress)
    shape = head_shape(model.model, model.name)
    mark = fingerprint(model.model)
    work = options.out / WORK
    with Standing.of(work, model.name, mark) as standing:
        corpus = Corpus(work)
        if not (work / CHECKPOINT).is_file():
            _write_text(options, model, shape, corpus, standing, progress)
        tokens, vocabulary = _vocabulary(corpus, model.vocab_size)
        if tokens < _LEAST_TOKENS:
            needed = options.minutes * _LEAST_TOKENS / max(tokens, 1) * 1.2
            raise EngineError(
                f"{model.name} has written {tokens} tokens in the time given and a draft head needs {_LEAST_TOKENS}: "
                f"give --minutes {needed:.0f} or more"
            )
        trainer = _train(options, model, shape, corpus, vocabulary, standing, progress)
        head = LoadedHead(copy.deepcopy(trainer.head).to(model.model.dtype).eval(), vocabulary, model.name, 0)
        greedy, sampled = _evaluate(options, model, head, corpus, progress)
        minutes = round((standing.text_seconds + trainer.progress.seconds) / 60, 1)
        card = HeadCard(
            target=model.name,
            fingerprint=mark,
            shape=shape,
            tokens=tokens,
            steps=trainer.progress.steps,
            minutes=minutes,
            gamma=GAMMA,
            greedy=greedy,
            sampled=sampled,
        )
        save_head(options.out, trainer.head, vocabulary, card)
    return card


def _write_text(
    options: Options, model: LoadedModel, shape: HeadShape, corpus: Corpus, standing: Standing, progress: Progress
) -> None:
    """Let the target write until its share of the time is over."""
    budget = options.minutes * 60 * _TEXT_SHARE
    if standing.text_seconds >= budget:
        return
    length = min(_LENGTH, model.context)
    if options.prompts is None:
        turns, prompts = Turns.of(model.tokenizer, model.name), []
    else:
        turns, prompts = None, read_prompts(options.prompts, model.tokenizer, length // 2)
    device = model.model.device
    target = CachedModel(model.model, _ROWS[device.type], length, 0, shape.taps)
    size = model.model.dtype.itemsize * shape.hidden * len(shape.taps)
    require_space(corpus.folder, 4 * _SHARD_TOKENS * size, "training text")
    rollout = Rollout(target, turns, model.eos_ids, prompts, seed=len(corpus.shards))
    before, began, done = standing.text_seconds, time.perf_counter(), corpus.tokens
    written: list[Conversation] = []
    spent = before
    while spent < budget:
        written += rollout.step()
        spent = before + time.perf_counter() - began
        if spent >= budget:
            written += rollout.unfinished()
        held = sum(len(talk.tokens) for talk in written)
        progress("text", f"{model.name} has written {done + held:,} tokens", min(spent / budget, 1.0))
        if held >= _SHARD_TOKENS or (held and spent >= budget):
            corpus.add(written)
            standing.spend(spent)
            done, written = done + held, []


def _vocabulary(corpus: Corpus, size: int) -> tuple[int, Tensor]:
    """How much text there is, and the tokens most often written in it [V'], ascending."""
    counts = torch.zeros(size, dtype=torch.long)
    total = 0
    for talk in corpus.talks():
        counts += torch.bincount(talk.tokens[talk.sampled].long(), minlength=size)
        total += len(talk.tokens)
    share, least = _VOCABULARY
    most = min(max(size // share, least), size)
    return total, counts.argsort(descending=True, stable=True)[:most].sort().values


def _train(
    options: Options,
    model: LoadedModel,
    shape: HeadShape,
    corpus: Corpus,
    vocabulary: Tensor,
    standing: Standing,
    progress: Progress,
) -> Trainer:
    checkpoint = corpus.folder / CHECKPOINT
    if checkpoint.is_file():
        head = DraftHead(shape).to(model.model.device)
    else:
        progress("training", "fitting the first guess", None)
        head = initial_head(model.model, shape, islice(corpus.talks(), _FITTED))
    network: Any = model.model
    embedding: Tensor = network.get_input_embeddings().weight
    output: Tensor = network.get_output_embeddings().weight
    trainer = Trainer(head, embedding, output, vocabulary.to(embedding.device), checkpoint)
    budget = max(options.minutes * 60 - standing.text_seconds, 0.0)
    for step in trainer.run(corpus, budget):
        overlap = " ".join(f"{100 * rate:.0f}" for rate in step.overlap)
        text = f"{step.steps} steps, {overlap} % acceptance on the training text"
        progress("training", text, min(step.seconds / budget, 1.0))
    return trainer


def _evaluate(
    options: Options, model: LoadedModel, head: LoadedHead, corpus: Corpus, progress: Progress
) -> tuple[Acceptance, Acceptance]:
    """Greedy and at temperature 1, on prompts that do not occur in the training text."""
    prompts = _unseen(load_prompts([_HELD_OUT])[0].prompts, corpus, model)
    config = EngineConfig(options.target, options.models, context=min(_CONTEXT, model.context))
    reached = []
    for place, temperature in enumerate((0.0, 1.0)):
        progress("evaluation", f"answering {len(prompts)} prompts at temperature {temperature:g}", place / 2)
        reached.append(evaluate(config, model, head, prompts, temperature))
    return reached[0], reached[1]


def _unseen(prompts: Sequence[Prompt], corpus: Corpus, model: LoadedModel) -> list[Prompt]:
    text = "\n".join(str(model.tokenizer.decode(talk.tokens)) for talk in corpus.talks())
    return [prompt for prompt in prompts if prompt.text not in text]
