"""From a question to its beams: load, read the prompt, search."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from specchat.engine.config import EngineConfig
from specchat.engine.device.device import pick_device
from specchat.engine.drafters.draft_model import CHAINS
from specchat.engine.drafters.head.folder import is_head
from specchat.engine.drafters.none import NoDrafter
from specchat.engine.drafters.published.find import find_published
from specchat.engine.errors import EngineError
from specchat.engine.events import FinishReason
from specchat.engine.models.encoder_decoder import require_decoder_only
from specchat.engine.models.store import ModelStore
from specchat.engine.models.tokenizer import check_vocabularies
from specchat.engine.progress import Progress, ignore_progress
from specchat.engine.request import MAX_GAMMA, Request
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.prompt import check_length, fit
from specchat.engine.sequence.thinking import find_markers, switch_of
from specchat.engine.tools.beams.branch_cache import BranchCache
from specchat.engine.tools.beams.check import check_request, drafter_of
from specchat.engine.tools.beams.decoding import decode
from specchat.engine.tools.beams.drafting import BeamDrafter
from specchat.engine.tools.beams.found import FoundBeam, FoundBeams
from specchat.engine.tools.beams.model_guesser import ModelGuesser
from specchat.engine.tools.beams.node import Node
from specchat.engine.tools.beams.search import BeamSearch, Complete
from specchat.engine.worker.obtain import Model, Obtained, make_runner, obtain_model

_SPREAD = 2
"""u of N: what is drafted for a step, in beams."""
_PADDING = 32
"""Columns for what passes are padded by."""


@dataclass(frozen=True, slots=True)
class BeamModels:
    """What beams are searched with."""

    config: EngineConfig
    target: Obtained
    draft: Obtained | None

    @classmethod
    def load(cls, config: EngineConfig, drafter: str, progress: Progress) -> BeamModels:
        """Load the target and, for the drafter that needs it, the draft model.

        Raises:
            EngineError: a model cannot be had, loaded or run, or the draft does not fit the target.
        """
        target = obtain_model(config.target, config, pick_device(config.device), progress)
        require_decoder_only(target.model, "beams are searched with")
        draft = _draft_model(config, target.model, progress) if drafter == CHAINS else None
        return cls(config, target, draft)

    def find(self, request: Request, beams: int, progress: Progress = ignore_progress) -> FoundBeams:
        """Search for the likeliest replies to a request that `check_request` lets pass; `progress` hears of each pass.

        Raises:
            EngineError: the prompt does not fit, memory is short, or the target computed something that is no
                number.
        """
        try:
            return _search(self, request, beams, progress)
        except torch.OutOfMemoryError as error:
            raise EngineError(
                "the device is out of memory: ask for fewer beams, lower --max-tokens or choose a smaller model"
            ) from error


def find_beams(config: EngineConfig, request: Request, beams: int, progress: Progress) -> FoundBeams:
    """Search for the likeliest replies to a request; `engine.tools.beams.search` has the rules.

    Args:
        config: of the models; it needs room for one text.
        request: a greedy one without stop strings.
        beams: N.
        progress: called while models load, and with each pass.

    Raises:
        EngineError: a model cannot be had, loaded or run, or the request asks for what beams cannot have.
    """
    check_request(request, beams, config.draft)
    return BeamModels.load(config, drafter_of(request, config.draft), progress).find(request, beams, progress)


def _draft_model(config: EngineConfig, target: Model, progress: Progress) -> Obtained:
    assert config.draft is not None
    if len(config.drafts) > 1:
        raise EngineError("beams take one draft model: name one with --draft")
    if is_head(Path(config.draft).expanduser()) or find_published(config.draft, ModelStore(config.models), progress):
        raise EngineError(f"{config.draft} is a draft head, which cannot draft for each beam: name a draft model")
    draft = obtain_model(config.draft, config, target.device, progress, stage="draft")
    check_vocabularies(target.tokenizer, draft.model.tokenizer, target.eos_ids, draft.model.eos_ids)
    return draft


def _search(models: BeamModels, request: Request, beams: int, progress: Progress) -> FoundBeams:
    """Read the prompt with both models, and search."""
    config, target, draft = models.config, models.target, models.draft
    model, name = target.model, drafter_of(request, config.draft)
    context = min(config.context, model.context, draft.model.context if draft else model.context)
    request.check_vocabulary(model.vocab_size)
    prompt = fit(request, model.tokenizer, 0, context).ids
    check_length(len(prompt), context)
    limit = min(request.max_tokens, context - len(prompt))
    gamma = 0 if name == NoDrafter.name else request.gamma
    width = 0 if gamma == 0 else _SPREAD * beams
    # Columns: beams may differ from their first token to their last one.
    spare = beams * limit + width * MAX_GAMMA + _PADDING

    def cache_of(part: Model) -> BranchCache:
        return BranchCache(make_runner(part, 1, context, spare), config.prefill_chunk)

    root = Node(prompt[-1], None, len(prompt) - 1)
    cache = cache_of(model)
    logits = cache.read(prompt, root)
    drafter = None
    if draft and width:
        own = cache_of(draft.model)
        own.read(prompt, root)
        drafter = BeamDrafter(ModelGuesser(own, model.vocab_size), beams, width, gamma, model.eos_ids)
    at_limit = FinishReason.LENGTH if limit == request.max_tokens else FinishReason.CONTEXT
    search = BeamSearch(root, beams, model.eos_ids, limit, at_limit)
    started = time.perf_counter()
    passes = decode(
        search, cache, logits, drafter, lambda: progress("search", f"step {search.steps} of at most {limit}", None)
    )
    return FoundBeams(
        beams=tuple(_told(each, model) for each in search.complete),
        prompt_tokens=len(prompt),
        steps=search.steps,
        target_passes=passes.count,
        tokens_read=passes.tokens,
        drafter=name,
        gamma=gamma,
        draft_width=width,
        seconds=time.perf_counter() - started,
        target=model.name,
        device=model.device.type,
        dtype=model.format,
        thinking_switch=switch_of(model.tokenizer.chat_template) is not None,
        notices=(*target.notices, *(draft.notices if draft else ())),
    )


def _told(complete: Complete, model: Model) -> FoundBeam:
    """A complete text in words."""
    tokens = [node.token for node in complete.node.path()[1:]]
    thinking = find_markers(model.tokenizer)
    words = Detokenizer(model.tokenizer, (), thinking.special if thinking else {})
    text = "".join([*(words.add(token) for token in tokens if token not in model.eos_ids), words.tail()])
    return FoundBeam(text, tuple(tokens), complete.log_probability, complete.score, complete.reason)
