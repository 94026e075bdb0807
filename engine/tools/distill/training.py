"""Distillation of a draft: text, vocabulary, updates, evaluation; a later call continues where one stopped."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import torch
from torch import Tensor

from specchat.engine.config import EngineConfig
from specchat.engine.device.device import CAPTURED, pick_device
from specchat.engine.drafters.head.folder import HeadAcceptance
from specchat.engine.errors import EngineError, check
from specchat.engine.models.catalog import chat_sampling
from specchat.engine.models.disk import require_space
from specchat.engine.models.load import LoadedModel, load_model, pick_dtype
from specchat.engine.models.packed.load import Model, PackedModel, require_decoder_only
from specchat.engine.models.resolve import resolve
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import Progress
from specchat.engine.request import DEFAULT_GAMMA
from specchat.engine.settings import Sampling
from specchat.engine.tools.distill.block import Block
from specchat.engine.tools.distill.eagle import Eagle
from specchat.engine.tools.distill.parallel import Medusa, Pass
from specchat.engine.tools.distill.tables import count_tables
from specchat.engine.tools.distill.text import (
    LENGTH,
    TEMPERATURES,
    Conversation,
    Corpus,
    Rollout,
    acceptance,
    own_questions,
    read_replies,
    scripts_of,
    split,
    state_size,
)
from specchat.engine.tools.distill.trainer import Draft, Trainer
from specchat.engine.tools.distill.work_folder import (
    COUNTED,
    WORK,
    Distilled,
    DistillOptions,
    StartingDraft,
    WorkFolder,
    find_start,
    locked,
    require_text,
)
from specchat.engine.tools.prompts import load_prompts
from specchat.engine.tools.runner import Variant, metrics_of, run_pass, running
from specchat.engine.worker.assembly import memory_errors
from specchat.engine.worker.obtain import make_runner, obtain_model

KINDS: Mapping[str, type[Draft]] = {"eagle": Eagle, "medusa": Medusa, "block": Block, "pass": Pass}
"""Trained kinds of drafts."""
CONTINUED_RATE = 0.5
"""Peak learning rate of a draft that was trained before, relative to a new one: it needs no large steps, and the
optimiser does not know its gradients yet."""
_FITTED = 400
"""Conversations that initial weights are fitted on."""
_HELD_OUT = "chat"
"""Prompt set of the evaluation."""
_REQUESTS = 4
"""Requests at once in the evaluation."""
MAX_TOKENS = 96
"""Longest reply of the evaluation."""
TEXT_SHARE = 0.4
"""Fraction of the time for writing text."""
LEAST_TOKENS = 20_000
"""Fewest tokens of text: drafts trained on less do not generalise to other prompts."""
LEAST_OF_CHATS = 1000
"""Fewest tokens of chats, which the draft is to be used for."""
_SHARD_TOKENS = 8192
_SETTINGS, _RECOMMENDED = (Sampling(), Sampling(temperature=1)), 2
"""Settings of replies, and how often the recommended ones, which chats use, are added where they are others."""
_ROWS = {"cpu": 96, "cuda": 512}
"""Conversations of `_LENGTH` tokens written at once, per device type."""
_LENGTH, _LONG = 384, 768
"""Tokens per conversation; the second for several given user turns, so that most of them are answered."""
VOCABULARY = 4, 4096
"""Size of a draft vocabulary: V divided by the first, but at least the second. Further tokens are rare but would be
read from memory in every step: a quarter of 49,152 tokens covers 93 % of greedy replies, an eighth 88 %."""
_KNOWN = 2
"""Additional count of each token of the starting draft's vocabulary: a short text says little about rare tokens."""


@memory_errors()
def distill(options: DistillOptions, progress: Progress) -> Distilled:
    """Make a draft of the kind `options.kind`.

    Trained kinds start from the target's weights or from a finished draft, or continue the training of an earlier call.

    Args:
        options: options of the command.
        progress: called with the stages target, text, training and evaluation.

    Raises:
        EngineError: the kind is unknown or the target is not supported, the folder belongs to another target or kind or
            holds something else, the starting draft does not fit, the time is too short, or the disk is full.
    """
    if options.kind == COUNTED:
        return count_tables(options, progress)
    check(options.kind in KINDS, f"kind {options.kind!r} is not there: choose one of {', '.join([*KINDS, COUNTED])}")
    # A folder with a model, or a draft that was not made there, has files of the same names.
    files = [] if (options.out / WORK).is_dir() else [*options.out.glob("*.json"), *options.out.glob("*.safetensors")]
    if files:
        raise EngineError(f"{options.out} holds something else already ({files[0].name}): distil into another folder")
    require_text(options.text)
    start = None
    if options.begin is not None:
        start = find_start(options.begin, options.out, options.kind, KINDS[options.kind].files)
    with locked(options.out / WORK):
        device = pick_device(options.device)
        folder = resolve(options.target, ModelStore(options.models), progress).folder()
        model = load_model(folder, device, pick_dtype(options.dtype, device, folder), progress)
        require_decoder_only(model, f"the kind {options.kind} is trained for")
        draft = KINDS[options.kind](model)
        if start is not None:
            draft.start(start)  # refused before anything is written
        work = WorkFolder.of(options.out / WORK, model.name, model.fingerprint, options.kind)
        if start is not None:
            work.keep_start(start, draft.files)
        return _train(options, draft, work, progress)


def _train(options: DistillOptions, draft: Draft, work: WorkFolder, progress: Progress) -> Distilled:
    """Write text, train, evaluate, and save the draft."""
    start = draft.start(work.start) if work.start else None
    learn, held = split(options.chats, work.folder) if options.chats else (None, None)
    corpus = Corpus(work.folder, [work.text_of(folder) for folder in options.text])
    resumed = work.checkpoint.is_file()
    if learn is not None:
        _read_chats(options, learn, draft, corpus, work, progress)
    elif not resumed:
        write_text(options, draft, corpus, work, progress)
    tokens, vocabulary = draft_vocabulary(options, draft.model, corpus, start.vocabulary if start else None)
    if start is None and not resumed:
        progress("training", "fitting the initial weights", None)
        draft.begin(vocabulary, islice(corpus.conversations(), _FITTED))
    else:
        draft.begin(vocabulary)
    if start is not None:
        draft.network.load_state_dict(start.weights)
    trainer = Trainer(draft, work.checkpoint, draft.rate * (CONTINUED_RATE if start else 1))
    budget = max(options.minutes * 60 - work.text_seconds, 0.0)
    for _ in trainer.run(corpus, budget):
        overlap = " ".join(f"{100 * rate:.0f}" for rate in trainer.overlap)
        words = f"{trainer.steps} steps, {overlap} % acceptance on the training text"
        progress("training", words, min(trainer.seconds / budget, 1.0))
    progress("training", "finishing the draft", None)
    draft.finish(corpus.conversations())
    before = start or StartingDraft({}, None, tokens=0, steps=0, minutes=0.0)
    minutes = (work.text_seconds + trainer.seconds) / 60
    made = Distilled(
        noun=draft.noun,
        target=draft.model.name,
        tokens=before.tokens + tokens,
        steps=before.steps + trainer.steps,
        minutes=round(before.minutes + minutes, 1),
        steps_before=before.steps,
        gamma=DEFAULT_GAMMA,
        reached=_evaluate(options, draft, corpus, progress) if held is None else {},
    )
    if held is not None:
        made = _on_chats(options, draft, work, held, made, progress)
    draft.save(options.out, made)
    if held is not None:
        work.clear()
    return made


def _on_chats(
    options: DistillOptions, draft: Draft, work: WorkFolder, held: Path, made: Distilled, progress: Progress
) -> Distilled:
    """Acceptance of the starting draft and of the new one on held-out chats."""
    assert work.start is not None
    progress("evaluation", "drafting along held-out chats", None)
    before = acceptance(options, work.start, held)
    new = work.folder / "new"
    draft.save(new, replace(made, reached=before))
    return replace(made, before=before, reached=acceptance(options, new, held))


def _read_chats(
    options: DistillOptions, file: Path, draft: Draft, corpus: Corpus, work: WorkFolder, progress: Progress
) -> None:
    """Let the target read stored chats, which counts as writing text does."""
    began = time.perf_counter()
    model = _writer(options, draft.model, progress)
    target = make_runner(model, 1, min(LENGTH, model.context), CAPTURED[-1], draft.taps)
    read_replies(file, target, model.tokenizer, draft.model.dtype, corpus, progress)
    work.spend(min(time.perf_counter() - began, options.minutes * 60 * TEXT_SHARE))


def write_text(options: DistillOptions, draft: Draft, corpus: Corpus, work: WorkFolder, progress: Progress) -> None:
    """Let the target write text until its share of the time is used up.

    Args:
        options: options of the command.
        draft: says which hidden states to store, in the target's dtype.
        corpus: receives the text.
        work: counts the time.
        progress: called with the stage text.

    Raises:
        EngineError: the target cannot write conversations, or the disk is full.
    """
    budget = options.minutes * 60 * TEXT_SHARE
    if work.text_seconds >= budget or not _is_written(options):
        return
    model = _writer(options, draft.model, progress)
    length = min(_LENGTH, model.context)
    if options.prompts is None:
        scripts = [own_questions(model.tokenizer, model.name)]
    else:
        scripts = scripts_of(options.prompts, model.tokenizer, model.name, length // 2)
        if any(script.follow_ups for script in scripts):
            length = min(_LONG, model.context)
    target = make_runner(model, _ROWS[model.device.type] * _LENGTH // max(length, _LENGTH), length, 0, draft.taps)
    dtype = draft.model.dtype
    require_space(corpus.folder, 4 * _SHARD_TOKENS * dtype.itemsize * state_size(target), "training text")
    recommended = chat_sampling(options.target, model.recommended)
    settings = [*_SETTINGS, *[recommended] * (_RECOMMENDED * (recommended not in _SETTINGS))]
    rollout = Rollout(target, model.eos_ids, scripts, dtype, len(corpus.shards), settings, model.tokenizer)
    spent, done = work.text_seconds, corpus.tokens
    began = time.perf_counter() - spent
    written: list[Conversation] = []
    while spent < budget:
        written += rollout.step()
        spent = time.perf_counter() - began
        if spent >= budget:
            written += rollout.unfinished()
        held = sum(len(talk.tokens) for talk in written)
        progress("text", f"{model.name} has written {done + held:,} tokens", min(spent / budget, 1.0))
        if held >= _SHARD_TOKENS or (held and spent >= budget):
            corpus.add(written)
            work.spend(spent)
            done, written = done + held, []


def _is_written(options: DistillOptions) -> bool:
    """Whether text is written: not if folders with text are given, and no prompts."""
    return not options.text or options.prompts is not None


def _writer(options: DistillOptions, model: LoadedModel, progress: Progress) -> Model:
    """The target that writes the text: on the quantised kernels if a chat runs it there, else `model`.

    The network used in training has the same weights, dequantised from the codes of the GGUF file.
    """
    source = resolve(options.target, ModelStore(options.models), progress)
    if model.device.type != "cpu" or options.dtype != "auto" or not source.is_gguf:
        return model
    config = EngineConfig(options.target, options.models)
    writer = obtain_model(options.target, config, model.device, progress).model
    return writer if isinstance(writer, PackedModel) else model


def draft_vocabulary(
    options: DistillOptions, model: LoadedModel, corpus: Corpus, before: Tensor | None = None
) -> tuple[int, Tensor]:
    """Number of tokens in the text, and the most frequent tokens in it, [V'], ascending by id.

    Tokens that end a reply are always included: a short text may have few of them.

    Args:
        options: options of the command.
        model: the target.
        corpus: the text.
        before: [V'], int64: vocabulary of the starting draft.

    Raises:
        EngineError: the text is too short.
    """
    size = model.vocab_size
    counts = torch.zeros(size, dtype=torch.long)
    total = 0
    for talk in corpus.conversations():
        counts += torch.bincount(talk.tokens[talk.sampled].long(), minlength=size)
        total += len(talk.tokens)
    if options.chats is not None:
        few = f"the chats have {total} tokens of text and {LEAST_OF_CHATS} are needed: chat first"
        check(total >= LEAST_OF_CHATS, few)
    elif total < LEAST_TOKENS:
        written, needed = f"the text given has {total} tokens", "name more folders with --text"
        if _is_written(options):
            written = f"{model.name} has written {total} tokens in the time given"
            needed = f"give --minutes {math.ceil(options.minutes * LEAST_TOKENS / max(total, 1) * 1.2)} or more"
        raise EngineError(f"{written} and a draft head needs {LEAST_TOKENS}: {needed}")
    share, least = VOCABULARY
    most = min(max(size // share, least), size)
    if before is not None:
        counts[before] += _KNOWN
    counts[[token for token in model.eos_ids if token < size]] = total + _KNOWN + 1
    return total, counts.argsort(descending=True, stable=True)[:most].sort().values


def _evaluate(options: DistillOptions, draft: Draft, corpus: Corpus, progress: Progress) -> dict[str, HeadAcceptance]:
    """Acceptance in the engine, greedy and at temperature 1, on prompts that are not in the training text."""
    text = "\n".join(str(draft.model.tokenizer.decode(talk.tokens.tolist())) for talk in corpus.conversations())
    prompts = [prompt for prompt in load_prompts([_HELD_OUT])[0].prompts if prompt.text not in text]
    context = min(options.context, draft.model.context)
    config = EngineConfig(options.target, options.models, slots=options.slots, context=context, seed=0)
    variant, reached = Variant(draft.drafter, DEFAULT_GAMMA), {}
    with running(config, lambda config, _: draft.assemble(config)) as (engine, _, _):
        for number, (name, temperature) in enumerate(TEMPERATURES.items()):
            progress("evaluation", f"answering {len(prompts)} prompts at temperature {temperature:g}", number / 2)
            passed = run_pass(engine, variant, prompts, _REQUESTS, Sampling(temperature=temperature), MAX_TOKENS)
            metrics = metrics_of(chain.from_iterable(passed))
            rate, tau = metrics.acceptance or 0.0, metrics.mean_emitted_length or 1.0
            reached[name] = HeadAcceptance(rate, tuple(metrics.per_position), tau)
        engine.close(None)  # training needs its memory
    return reached
