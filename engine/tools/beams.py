"""Beam search for a request, with drafts or without, and a measurement of what drafts save."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from specchat.engine.config import EngineConfig
from specchat.engine.device.device import pick_device
from specchat.engine.drafters.draft_model import CHAINS
from specchat.engine.errors import EngineError, check
from specchat.engine.events import FinishReason
from specchat.engine.models.packed.load import Model, require_decoder_only
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import Progress, ignore_progress
from specchat.engine.request import AUTO, DEFAULT_GAMMA, MAX_GAMMA, NO_DRAFTER, Request, gamma_text, parse_gamma
from specchat.engine.research.beam_search import SPREAD, BeamSearch, Complete, TextTree, run
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.prompt import check_length, fit
from specchat.engine.sequence.reply_formats import find_format
from specchat.engine.sequence.template_traits import thinking_values
from specchat.engine.tools.prompts import SETS, PromptSet, load_prompts
from specchat.engine.tools.report import Columns, Table, paragraphs
from specchat.engine.tools.runner import Say, require_least
from specchat.engine.worker.obtain import Obtained, make_runner, names_part, obtain_drafts, obtain_model

FEWEST, MOST = 2, 16
"""Numbers of beams."""
DRAFTERS = (AUTO, NO_DRAFTER, CHAINS)
"""Drafters that can draft for each beam; auto is the draft model if one is given, else none."""
_PADDING = 32
"""Cache columns for the padding of passes."""
_FEW = 0.1
"""Share of saved passes below which the summary says why."""


@dataclass(frozen=True, slots=True)
class FoundBeam:
    """One complete text."""

    text: str
    """The answer, without thinking."""
    token_ids: tuple[int, ...]
    """The EOS token included."""
    log_probability: float
    score: float
    """Log-probability per token, by which beams are ordered."""
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class FoundBeams:
    """Beams of one prompt, and the work of the search."""

    beams: tuple[FoundBeam, ...]
    """Best first."""
    prompt_tokens: int
    steps: int
    """Steps of the search: target passes of beam search without drafts."""
    target_passes: int
    passes_saved: int
    tokens_read: int
    """Tokens in all target passes."""
    drafter: str
    gamma: int | str
    """Drafted steps per pass; 0 for none, or auto."""
    draft_width: int
    """Drafted texts per step."""
    seconds: float
    """Time of the search, without the prompt."""
    device: str
    dtype: str
    target: str
    thinking_switch: bool
    """Whether the chat template can switch thinking."""
    notices: tuple[str, ...]
    """Sentences for the user."""

    def json(self) -> dict[str, object]:
        """The beams and the figures as one object."""
        hidden = ("target", "thinking_switch", "notices")
        shown = {name: value for name, value in asdict(self).items() if name not in hidden}
        return {"text": self.beams[0].text, **shown}

    def summary(self) -> str:
        """One line: the target passes that drafts saved."""
        if self.gamma == 0:
            return f"{self.target_passes} target passes, one for each step: nothing was drafted"
        share = self.passes_saved / self.steps
        saved = f"{self.target_passes} target passes instead of {self.steps}: {self.passes_saved} saved ({share:.0%})"
        drafted = f"drafted by {self.drafter}, gamma {self.gamma}"
        if self.gamma == AUTO and share < _FEW:
            drafted += f"; wide passes cost too much here to draft more, --gamma {DEFAULT_GAMMA} does so all the same"
        return f"{saved}, {drafted}"


def check_request(request: Request, beams: int, draft: str | None) -> str:
    """Check that a request can be answered by beam search; returns the name of its drafter.

    Args:
        request: the request.
        beams: N.
        draft: name of the draft model, if any.

    Raises:
        EngineError: it cannot.
    """
    sampling, drafter = request.sampling, request.drafter
    problems = {
        f"beams is {beams}: it must be from {FEWEST} to {MOST}": not FEWEST <= beams <= MOST,
        f"beams are the likeliest texts, and temperature {sampling.temperature:g} draws texts by chance: set it to 0, "
        "or leave beams out": sampling.temperature > 0,
        "beams have the target's own probabilities: leave penalties and logit biases out": sampling.adjusts,
        "beams are exact: leave lenience out": not sampling.lossless,
        "beams end where the model ends them: leave stop strings out, or lower max-tokens": request.stop,
        "beams follow no JSON schema, regular expression, grammar or choice: leave it out, or leave beams out": (
            request.constraint
        ),
        f"the drafter {drafter} cannot draft for each beam: choose one of {', '.join(DRAFTERS)}": drafter
        not in DRAFTERS,
        "drafter model needs a draft model: name one with --draft": drafter == CHAINS and draft is None,
    }
    for sentence, found in problems.items():
        check(not found, sentence)
    request.check_prompt()
    if request.gamma == 0 or draft is None:
        return NO_DRAFTER
    return CHAINS if request.drafter == AUTO else request.drafter


def _load(config: EngineConfig, drafter: str, progress: Progress) -> list[Obtained]:
    """Load the target, and the draft model if the drafter needs it.

    Raises:
        EngineError: a model is unavailable, cannot be loaded or run, or the draft does not fit the target.
    """
    target = obtain_model(config.target, config, pick_device(config.device), progress)
    require_decoder_only(target.model, "beams are searched with")
    if drafter == NO_DRAFTER:
        return [target]
    check(len(config.drafts) <= 1, "beams take one draft model: name one with --draft")
    if names_part(config.drafts[0], ModelStore(config.models), progress):
        raise EngineError(f"{config.draft} is a draft head, which cannot draft for each beam: name a draft model")
    return [target, *obtain_drafts(config, target.model, progress)]


@torch.inference_mode()
def _find(
    models: Sequence[Obtained], config: EngineConfig, request: Request, beams: int, progress: Progress = ignore_progress
) -> FoundBeams:
    """Search for the likeliest replies to a checked request.

    Args:
        models: result of `_load`.
        config: context and chunks.
        request: without drafts, the draft model is not used.
        beams: N.
        progress: called with each pass.

    Raises:
        EngineError: the prompt does not fit, memory is short, or the target computed NaN.
    """
    name = check_request(request, beams, config.draft)
    used = models if name != NO_DRAFTER else models[:1]
    model = used[0].model
    context = min(config.context or model.context, *(each.model.context for each in used))
    prompt = fit(request, model.tokenizer, 0, context).ids
    check_length(len(prompt), context)
    limit = min(request.max_tokens, context - len(prompt))
    width = SPREAD * beams if len(used) > 1 else 0
    # Beams may differ from their first token to their last one.
    spare = beams * limit + width * MAX_GAMMA + _PADDING
    search = BeamSearch(beams, model.eos_ids, limit)
    gamma = request.gamma if len(used) > 1 else 0
    try:
        runners = [make_runner(each.model, 1, len(prompt) + limit, spare) for each in used]
        trees = [TextTree(runner, prompt, config.prefill_chunk, model.vocab_size) for runner in runners]
        started = time.perf_counter()
        passes, tokens = run(
            search, trees, gamma, lambda: progress("search", f"step {search.steps} of at most {limit}", None)
        )
    except torch.OutOfMemoryError as error:
        raise EngineError(
            "the device is out of memory: ask for fewer beams, lower --max-tokens or choose a smaller model"
        ) from error
    at_limit = FinishReason.LENGTH if limit == request.max_tokens else FinishReason.CONTEXT
    return FoundBeams(
        beams=tuple(_found(each, model, prompt, at_limit) for each in search.complete),
        prompt_tokens=len(prompt),
        steps=search.steps,
        target_passes=passes,
        passes_saved=search.steps - passes,
        tokens_read=tokens,
        drafter=name,
        gamma=AUTO if gamma is None else gamma,
        draft_width=width,
        seconds=time.perf_counter() - started,
        device=model.device.type,
        dtype=model.format,
        target=model.name,
        thinking_switch=bool(thinking_values(model.tokenizer)),
        notices=tuple(notice for each in used for notice in each.notices),
    )


def _found(complete: Complete, model: Model, prompt: Sequence[int], at_limit: FinishReason) -> FoundBeam:
    form = find_format(model.tokenizer)
    marks = (form.parser(prompt, model.tokenizer), form.special) if form is not None else ()
    detokenizer = Detokenizer(model.tokenizer, (), *marks)
    pieces = detokenizer.begin([token for token in complete.tokens if token not in model.eos_ids])
    pieces.append((detokenizer.tail(), detokenizer.thinking))
    reason = FinishReason.EOS if complete.ended else at_limit
    text = "".join(piece for piece, thinking in pieces if not thinking)
    return FoundBeam(text, complete.tokens, complete.log_probability, complete.score, reason)


def find_beams(config: EngineConfig, request: Request, beams: int, progress: Progress) -> FoundBeams:
    """Search for the likeliest replies to a request by the rules of `engine.research.beam_search`.

    Args:
        config: models, device and context.
        request: a greedy request without stop strings.
        beams: N.
        progress: called while models load, and with each pass.

    Raises:
        EngineError: a model cannot be loaded or run, or the request cannot be answered by beam search.
    """
    models = _load(config, check_request(request, beams, config.draft), progress)
    return _find(models, config, request, beams, progress)


_COLUMNS: Columns = {
    "prompts": lambda cell: cell["prompts"],
    "drafter": lambda cell: cell["drafter"],
    "gamma": lambda cell: cell["gamma"],
    "steps": lambda cell: str(cell["steps"]),
    "passes": lambda cell: str(cell["target_passes"]),
    "saved": lambda cell: f"{cell['saved']:.0%}",
    "tokens/pass": lambda cell: f"{cell['tokens_read'] / cell['target_passes']:.1f}",
    "without": lambda cell: f"{cell['plain_tokens_read'] / cell['steps']:.1f}",
    "speedup": lambda cell: f"{cell['speedup']:.2f}×",
}


@dataclass(frozen=True, slots=True)
class BeamReport:
    """Searches with drafts against the same searches without, for each prompt set and draft length."""

    target: str
    device: str
    dtype: str
    beams: int
    cells: tuple[dict[str, Any], ...]

    def json(self) -> str:
        """One object."""
        return json.dumps(asdict(self), indent=2)

    def text(self) -> str:
        """A table."""
        title = f"Beam search, {self.beams} beams · {self.target} · {self.device} · {self.dtype}\n"
        same, searches = (sum(cell[name] for cell in self.cells) for name in ("same", "searches"))
        return paragraphs(
            Table.of(self.cells, _COLUMNS, title, names=3).text(),
            f"{same} of {searches} searches with drafts gave the beams of those without.",
        )


def measure_beams(
    config: EngineConfig,
    beams: int,
    say: Say,
    *,
    drafter: str = AUTO,
    gammas: Sequence[str] = (AUTO,),
    prompts: Sequence[str] = SETS,
    limit: int = 4,
    max_tokens: int = 64,
) -> BeamReport:
    """Search for the beams of each prompt without and with drafts, in turn.

    Args:
        config: models, device and context.
        beams: N.
        say: called with one-line progress messages.
        drafter: one of `DRAFTERS`.
        gammas: draft lengths as typed.
        prompts: names of prompt sets.
        limit: maximum number of prompts of each set.
        max_tokens: maximum length of a reply.

    Raises:
        EngineError: a value is out of range, or a model is unavailable.
    """
    require_least(limit=(limit, 1))
    sets = [each.first(limit) for each in load_prompts(prompts)]
    requests = [
        Request("beams", prompt="?", drafter=drafter, gamma=parse_gamma(g), max_tokens=max_tokens) for g in gammas
    ]
    for request in requests:
        name = check_request(request, beams, config.draft)
        if request.gamma == 0 or drafter == NO_DRAFTER:
            raise EngineError("every prompt is searched without drafts as well: leave gamma 0 and drafter none out")
        check(name != NO_DRAFTER, "beams are drafted by a draft model: name one with --draft")
    say("loading")
    models = _load(config, CHAINS, ignore_progress)
    find = partial(_find, models, config, beams=beams)
    find(replace(requests[0], max_tokens=2))  # warm-up
    cells = tuple(_measure(find, each, request, say) for each in sets for request in requests)
    model = models[0].model
    return BeamReport(model.name, model.device.type, model.format, beams, cells)


def _measure(
    find: Callable[[Request], FoundBeams], prompt_set: PromptSet, request: Request, say: Say
) -> dict[str, Any]:
    """Figures of one prompt set and draft length."""
    drafted, plain = [], []
    gamma = gamma_text(request.gamma)
    for number, prompt in enumerate(prompt_set.prompts, 1):
        say(f"{prompt_set.name}, gamma {gamma}: prompt {number} of {len(prompt_set.prompts)}")
        each = replace(request, prompt=None, messages=prompt.messages)
        plain.append(find(replace(each, gamma=0)))
        drafted.append(find(each))
    pairs = zip(drafted, plain, strict=True)
    same = [[beam.token_ids for beam in one.beams] == [beam.token_ids for beam in other.beams] for one, other in pairs]
    steps, passes = sum(each.steps for each in plain), sum(each.target_passes for each in drafted)
    seconds, plain_seconds = (sum(each.seconds for each in found) for found in (drafted, plain))
    return {
        "prompts": prompt_set.name,
        "drafter": drafted[0].drafter,
        "gamma": gamma,
        "searches": len(plain),
        "same": sum(same),
        "steps": steps,
        "target_passes": passes,
        "tokens_read": sum(each.tokens_read for each in drafted),
        "plain_tokens_read": sum(each.tokens_read for each in plain),
        "seconds": seconds,
        "plain_seconds": plain_seconds,
        "saved": 1 - passes / steps,
        "speedup": plain_seconds / seconds,
    }
