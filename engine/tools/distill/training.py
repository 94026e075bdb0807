"""Distillation of a draft: text, vocabulary, updates, evaluation; a later call continues where one stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from specchat.engine.request import DEFAULT_GAMMA, Sampling
from specchat.engine.round import Round
from specchat.engine.stats.metrics import Metrics
from specchat.engine.tools.distill.corpus import Corpus
from specchat.engine.tools.distill.eagle import EagleRecipe, EagleTrainee
from specchat.engine.tools.distill.options import COUNTED, Distilled, DistillOptions
from specchat.engine.tools.distill.parallel import MedusaRecipe, MedusaTrainee, PassRecipe, PassTrainee
from specchat.engine.tools.distill.tables import count_tables
from specchat.engine.tools.distill.text import draft_vocabulary, unseen, write_text
from specchat.engine.tools.distill.trainer import AGAIN, Trainer
from specchat.engine.tools.distill.work_folder import WORK, StartingDraft, WorkFolder, find_start
from specchat.engine.tools.prompts import Prompt, load_prompts
from specchat.engine.tools.runner import Variant, run_pass, running
from specchat.engine.worker.assembly import Assembly
from specchat.engine.worker.obtain import Model, obtain_model

Recipe = EagleRecipe | MedusaRecipe | PassRecipe
Trainee = EagleTrainee | MedusaTrainee | PassTrainee
RECIPES: Mapping[str, Callable[[LoadedModel], Recipe]] = {
    "eagle": EagleRecipe,
    "medusa": MedusaRecipe,
    "pass": PassRecipe,
}
"""Trained kinds of drafts."""
CHECKPOINT = "training.pt"
_FITTED = 400
"""Conversations that initial weights are fitted on."""
_HELD_OUT = "chat"
"""Prompt set of the evaluation."""
_ROWS = 4
"""Requests at once in the evaluation."""
_MAX_TOKENS = 96
"""Longest reply of the evaluation."""


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
    if options.kind not in RECIPES:
        raise EngineError(f"kind {options.kind!r} is not there: choose one of {', '.join([*RECIPES, COUNTED])}")
    _require_free(options.out)
    device = pick_device(options.device)
    folder = resolve(options.target, ModelStore(options.models), progress)
    model = load_model(folder, device, pick_dtype(options.dtype, device, folder), progress)
    require_decoder_only(model, f"the kind {options.kind} is trained for")
    recipe = RECIPES[options.kind](model)
    draft = None
    if options.begin is not None:
        draft = find_start(options.begin, options.out, options.kind, recipe.files)
        recipe.start(draft)  # refused before anything is written
    with WorkFolder.open(options.out / WORK, model.name, model.fingerprint, options.kind) as work:
        if draft is not None:
            work.keep_start(draft, recipe.files, started=(work.folder / CHECKPOINT).is_file())
        return _train(options, model, recipe, work, progress)


def _train(
    options: DistillOptions, model: LoadedModel, recipe: Recipe, work: WorkFolder, progress: Progress
) -> Distilled:
    """Write text, train, evaluate, and save the draft."""
    start = recipe.start(work.start) if work.start else None
    corpus = Corpus(work.folder, [work.require_text(folder) for folder in options.text])
    resumed = (work.folder / CHECKPOINT).is_file()
    if not resumed:
        write_text(options, _writer(options, model, progress), recipe.taps, model.dtype, corpus, work, progress)
    tokens, vocabulary = draft_vocabulary(options, model, corpus, start.vocabulary if start else None)
    if start is None and not resumed:
        progress("training", "fitting the initial weights", None)
        trainee = recipe.trainee(vocabulary, islice(corpus.conversations(), _FITTED))
    else:
        trainee = recipe.trainee(vocabulary, None)
    if start is not None:
        trainee.network.load_state_dict(start.weights)
    trainer = _update(options, model, trainee, trainee.rate * (AGAIN if start else 1), corpus, work, progress)
    before = start or StartingDraft({}, None, tokens=0, steps=0, minutes=0.0)
    minutes = (work.text_seconds + trainer.progress.seconds) / 60
    made = Distilled(
        noun=recipe.noun,
        target=model.name,
        tokens=before.tokens + tokens,
        steps=before.steps + trainer.progress.steps,
        minutes=round(before.minutes + minutes, 1),
        steps_before=before.steps,
        gamma=DEFAULT_GAMMA,
    )
    made = replace(made, reached=_evaluate(options, model, recipe, trainee, corpus, progress))
    trainee.save(options.out, made, model.fingerprint)
    return made


def _writer(options: DistillOptions, model: LoadedModel, progress: Progress) -> Model:
    """The target that writes the text: on the quantised kernels if a chat runs it there, else `model`.

    The network used in training has the same weights, dequantised from the codes of the GGUF file.
    """
    if model.device.type != "cpu" or options.dtype != "auto" or not is_gguf(options.target, ModelStore(options.models)):
        return model
    config = EngineConfig(options.target, options.models)
    writer = obtain_model(options.target, config, model.device, progress).model
    return writer if isinstance(writer, PackedModel) else model


def _require_free(out: Path) -> None:
    """Refuse a folder with a model, or a draft that was not made there: their files have the same names."""
    if (out / WORK).is_dir():
        return
    files = [*out.glob("*.json"), *out.glob("*.safetensors")]
    if files:
        raise EngineError(f"{out} holds something else already ({files[0].name}): distil into another folder")


def _update(
    options: DistillOptions,
    model: LoadedModel,
    trainee: Trainee,
    rate: float,
    corpus: Corpus,
    work: WorkFolder,
    progress: Progress,
) -> Trainer:
    """Train for the rest of the time."""
    network, checkpoint = trainee.network, work.folder / CHECKPOINT
    trainer = Trainer(network, trainee.loss, model.model.dtype, checkpoint, rate, four_bits=trainee.four_bits)
    budget = max(options.minutes * 60 - work.text_seconds, 0.0)
    for step in trainer.run(corpus, budget):
        overlap = " ".join(f"{100 * rate:.0f}" for rate in step.overlap)
        text = f"{step.steps} steps, {overlap} % acceptance on the training text"
        progress("training", text, min(step.seconds / budget, 1.0))
    return trainer


def _evaluate(
    options: DistillOptions, model: LoadedModel, recipe: Recipe, trainee: Trainee, corpus: Corpus, progress: Progress
) -> dict[str, HeadAcceptance]:
    """Acceptance, greedy and at temperature 1, on prompts that are not in the training text."""
    prompts = unseen(load_prompts([_HELD_OUT])[0].prompts, corpus, model)
    context = min(options.context, model.context)
    config = EngineConfig(options.target, options.models, slots=options.slots, context=context)
    reached = {}
    for number, (name, temperature) in enumerate((("greedy", 0.0), ("temperature 1", 1.0))):
        progress("evaluation", f"answering {len(prompts)} prompts at temperature {temperature:g}", number / 2)
        reached[name] = _acceptance(config, trainee, recipe.drafter, prompts, temperature)
    return reached


def _acceptance(
    config: EngineConfig, trainee: Trainee, drafter: str, prompts: Sequence[Prompt], temperature: float
) -> HeadAcceptance:
    """Generate replies in the engine with `DEFAULT_GAMMA` tokens drafted per round."""

    def assemble(config: EngineConfig, progress: Progress) -> Assembly:  # noqa: ARG001
        return trainee.assemble(config)

    sampling = Sampling(temperature=temperature, seed=0 if temperature else None)
    with running(config, assemble, close_s=None) as (engine, _):
        passed = run_pass(engine, Variant(drafter, DEFAULT_GAMMA), prompts, _ROWS, sampling, _MAX_TOKENS)
    metrics = Metrics()
    for event in (event for events in passed for event in events):
        if isinstance(event, Round):
            metrics.add(event)
    return HeadAcceptance(metrics.acceptance or 0.0, tuple(metrics.per_position), metrics.mean_emitted_length or 1.0)
