"""Distillation: text, vocabulary, training, evaluation. Each part resumes where an earlier call stopped."""

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

from specchat.engine.config import EngineConfig
from specchat.engine.errors import EngineError
from specchat.engine.models.disk import require_space
from specchat.engine.models.fingerprint import fingerprint
from specchat.engine.models.load import LoadedModel, load_model, pick_dtype
from specchat.engine.models.resolve import resolve
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import Progress
from specchat.engine.runner.device import pick_device
from specchat.engine.runner.model_runner import ModelRunner
from specchat.engine.speculation.drafters.head.folder import HeadAcceptance, HeadCard, LoadedHead, save_head
from specchat.engine.speculation.drafters.head.network import DraftHead, HeadShape
from specchat.engine.tools.bench.prompts import Prompt, load_prompts
from specchat.engine.tools.distill.corpus import Conversation, Corpus
from specchat.engine.tools.distill.evaluation import GAMMA, evaluate
from specchat.engine.tools.distill.initial import head_shape, initial_head
from specchat.engine.tools.distill.prompts import read_prompts
from specchat.engine.tools.distill.rollout import Rollout
from specchat.engine.tools.distill.standing import Standing
from specchat.engine.tools.distill.trainer import Trainer
from specchat.engine.tools.distill.turns import Turns

CHECKPOINT = "training.pt"
WORK = ".work"
"""Subfolder of the head's folder for training text and checkpoint; kept, so that training can be continued."""
_TEXT_SHARE = 0.4
"""Fraction of the time for writing text."""
_VOCABULARY = 8, 4096
"""Size of the head's vocabulary: V divided by the first, but at least the second. Further tokens are rare but would be
read from memory in every step: an eighth of 49,152 tokens covers nine tenths of a chat."""
_LEAST_TOKENS = 20_000
"""Fewest tokens of text: a head trained on less does not generalise to other prompts."""
_SHARD_TOKENS = 8192
_ROWS = {"cpu": 96, "cuda": 512}
"""Conversations written at once, per device type."""
_FITTED = 400
"""Conversations that the initial linear maps are fitted on."""
_CONTEXT = 1024
_LENGTH = 384
"""Tokens per conversation."""
_HELD_OUT = "chat"
"""The prompt set that a head is evaluated on."""


@dataclass(frozen=True, slots=True)
class DistillOptions:
    """Options of the command line.

    Raises:
        EngineError: a value is out of range.
    """

    models: Path
    target: str
    out: Path
    minutes: float = 120.0
    prompts: Path | None = None
    """File of prompts, one per line; without it the target writes the user turns too."""
    device: str = "auto"
    dtype: str = "auto"
    slots: int = 4
    """Requests at once in the evaluation."""
    context: int = _CONTEXT
    """Context of the engine in the evaluation, in tokens; the model's own if that is less."""

    def __post_init__(self) -> None:
        if not self.minutes > 0:
            raise EngineError(f"minutes is {self.minutes:g}: it must be above 0")


def distill(options: DistillOptions, progress: Progress) -> HeadCard:
    """Distil a draft head, or continue the distillation of an earlier call.

    Args:
        options: of the command.
        progress: called with the stages target, text, training and evaluation.

    Raises:
        EngineError: the target is not supported, the folder belongs to another target, the time is too short, or the
            disk is full.
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
    options: DistillOptions,
    model: LoadedModel,
    shape: HeadShape,
    corpus: Corpus,
    standing: Standing,
    progress: Progress,
) -> None:
    """Let the target write text until its share of the time is used up."""
    budget = options.minutes * 60 * _TEXT_SHARE
    if standing.text_seconds >= budget:
        return
    length = min(_LENGTH, model.context)
    if options.prompts is None:
        turns, prompts = Turns.of(model.tokenizer, model.name), []
    else:
        turns, prompts = None, read_prompts(options.prompts, model.tokenizer, length // 2)
    device = model.model.device
    target = ModelRunner(model.model, _ROWS[device.type], length, 0, shape.taps)
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
    """Number of tokens in the text, and the most frequent tokens in it, [V'], ascending by id."""
    counts = torch.zeros(size, dtype=torch.long)
    total = 0
    for talk in corpus.talks():
        counts += torch.bincount(talk.tokens[talk.sampled].long(), minlength=size)
        total += len(talk.tokens)
    share, least = _VOCABULARY
    most = min(max(size // share, least), size)
    return total, counts.argsort(descending=True, stable=True)[:most].sort().values


def _train(
    options: DistillOptions,
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
    options: DistillOptions, model: LoadedModel, head: LoadedHead, corpus: Corpus, progress: Progress
) -> tuple[HeadAcceptance, HeadAcceptance]:
    """Evaluate the head, greedy and at temperature 1, on prompts that are not in the training text."""
    prompts = _unseen(load_prompts([_HELD_OUT])[0].prompts, corpus, model)
    config = EngineConfig(
        options.target, options.models, slots=options.slots, context=min(options.context, model.context)
    )
    reached = []
    for place, temperature in enumerate((0.0, 1.0)):
        progress("evaluation", f"answering {len(prompts)} prompts at temperature {temperature:g}", place / 2)
        reached.append(evaluate(config, model, head, prompts, temperature))
    return reached[0], reached[1]


def _unseen(prompts: Sequence[Prompt], corpus: Corpus, model: LoadedModel) -> list[Prompt]:
    text = "\n".join(str(model.tokenizer.decode(talk.tokens)) for talk in corpus.talks())
    return [prompt for prompt in prompts if prompt.text not in text]
