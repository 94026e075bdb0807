"""Training of a draft for a target: text, vocabulary, updates, evaluation; each resumes where a call stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

from specchat.engine.config import EngineConfig
from specchat.engine.device.device import pick_device
from specchat.engine.drafters.head.folder import HeadAcceptance
from specchat.engine.errors import EngineError
from specchat.engine.models.encoder_decoder import require_decoder_only
from specchat.engine.models.load import LoadedModel, load_model, pick_dtype
from specchat.engine.models.packed.load import PackedModel
from specchat.engine.models.resolve import is_gguf, resolve
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import Progress
from specchat.engine.tools.bench.prompts import load_prompts
from specchat.engine.tools.distill.beginning import Beginning, find_beginning, keep, kept
from specchat.engine.tools.distill.corpus import Corpus
from specchat.engine.tools.distill.distilled import Distilled
from specchat.engine.tools.distill.evaluation import GAMMA, evaluate
from specchat.engine.tools.distill.options import DistillOptions
from specchat.engine.tools.distill.recipe import Recipe, Trainee
from specchat.engine.tools.distill.standing import WORK, Standing
from specchat.engine.tools.distill.text import draft_vocabulary, unseen, write_text
from specchat.engine.tools.distill.trainer import AGAIN, Trainer
from specchat.engine.worker.obtain import Model, obtain_model

CHECKPOINT = "training.pt"
_FITTED = 400
"""Conversations that weights are first estimated from."""
_HELD_OUT = "chat"
"""The prompt set of the evaluation."""


def distill_trained(
    options: DistillOptions, progress: Progress, recipe_of: Callable[[LoadedModel], Recipe]
) -> Distilled:
    """Train a draft, from the target's weights or from a finished draft, or continue the training of an earlier call.

    Args:
        options: of the command.
        progress: called with the stages target, text, training and evaluation.
        recipe_of: gives the kind's recipe for the target.

    Raises:
        EngineError: the target is not supported, the folder belongs to another target or kind or holds something else,
            what it begins with does not fit, the time is too short, or the disk is full.
    """
    _require_free(options.out)
    device = pick_device(options.device)
    folder = resolve(options.target, ModelStore(options.models), progress)
    model = load_model(folder, device, pick_dtype(options.dtype, device, folder), progress)
    require_decoder_only(model, f"the kind {options.kind} is trained for")
    recipe, mark = recipe_of(model), model.fingerprint
    head = find_beginning(options.begin, options.out, options.kind, recipe.files) if options.begin is not None else None
    if head is not None:
        recipe.beginning(head)  # refused before anything is written
    with Standing.of(options.out / WORK, model.name, mark, options.kind) as standing:
        if head is not None:
            keep(head, standing.folder, recipe.files, begun=(standing.folder / CHECKPOINT).is_file())
        begun = kept(standing.folder)
        beginning = recipe.beginning(begun) if begun else None
        corpus = Corpus(standing.folder, [standing.require_text(folder) for folder in options.text])
        if not (corpus.folder / CHECKPOINT).is_file():
            writer = _writer(options, model, progress)
            write_text(options, writer, recipe.taps, model.dtype, corpus, standing, progress)
        tokens, vocabulary = draft_vocabulary(options, model, corpus, beginning.vocabulary if beginning else None)
        if beginning is not None:
            trainee = recipe.trainee(vocabulary, None)
            trainee.network.load_state_dict(beginning.weights)
        elif not (corpus.folder / CHECKPOINT).is_file():
            progress("training", "fitting the first guess", None)
            trainee = recipe.trainee(vocabulary, islice(corpus.talks(), _FITTED))
        else:
            trainee = recipe.trainee(vocabulary, None)
        rate = trainee.rate * (AGAIN if beginning else 1)
        trainer = _train(options, model, trainee, rate, corpus, standing, progress)
        before = beginning or Beginning({}, None, tokens=0, steps=0, minutes=0.0)
        minutes = (standing.text_seconds + trainer.progress.seconds) / 60
        made = Distilled(
            noun=recipe.noun,
            target=model.name,
            tokens=before.tokens + tokens,
            steps=before.steps + trainer.progress.steps,
            minutes=round(before.minutes + minutes, 1),
            steps_before=before.steps,
            gamma=GAMMA,
        )
        made = replace(made, reached=_evaluate(options, model, recipe, trainee, corpus, progress))
        trainee.save(options.out, made, mark)
    return made


def _writer(options: DistillOptions, model: LoadedModel, progress: Progress) -> Model:
    """The target as a chat runs it, which writes the text: on the quantised kernels where they run it, else `model`.

    The network that is trained with has the same weights: those that the codes of a GGUF file stand for.
    """
    if model.device.type != "cpu" or options.dtype != "auto" or not is_gguf(options.target, ModelStore(options.models)):
        return model
    config = EngineConfig(options.target, options.models)
    writer = obtain_model(options.target, config, model.device, progress).model
    return writer if isinstance(writer, PackedModel) else model


def _require_free(out: Path) -> None:
    """Refuse a folder with a model, or a draft that was not made there: their files have the names of ours."""
    if (out / WORK).is_dir():
        return
    there = [*out.glob("*.json"), *out.glob("*.safetensors")]
    if there:
        raise EngineError(f"{out} holds something else already ({there[0].name}): distil into another folder")


def _train(
    options: DistillOptions,
    model: LoadedModel,
    trainee: Trainee,
    rate: float,
    corpus: Corpus,
    standing: Standing,
    progress: Progress,
) -> Trainer:
    trainer = Trainer(
        trainee.network,
        trainee.loss,
        model.model.dtype,
        corpus.folder / CHECKPOINT,
        rate,
        four_bits=trainee.four_bits,
    )
    budget = max(options.minutes * 60 - standing.text_seconds, 0.0)
    for step in trainer.run(corpus, budget):
        overlap = " ".join(f"{100 * rate:.0f}" for rate in step.overlap)
        text = f"{step.steps} steps, {overlap} % acceptance on the training text"
        progress("training", text, min(step.seconds / budget, 1.0))
    return trainer


def _evaluate(
    options: DistillOptions, model: LoadedModel, recipe: Recipe, trainee: Trainee, corpus: Corpus, progress: Progress
) -> dict[str, HeadAcceptance]:
    """Evaluate, greedy and at temperature 1, on prompts that are not in the training text."""
    prompts = unseen(load_prompts([_HELD_OUT])[0].prompts, corpus, model)
    config = EngineConfig(
        options.target, options.models, slots=options.slots, context=min(options.context, model.context)
    )
    reached = {}
    for place, (name, temperature) in enumerate((("greedy", 0.0), ("temperature 1", 1.0))):
        progress("evaluation", f"answering {len(prompts)} prompts at temperature {temperature:g}", place / 2)
        reached[name] = evaluate(config, trainee.assemble, recipe.drafter, prompts, temperature)
    return reached
