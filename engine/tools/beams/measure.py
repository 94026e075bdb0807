"""What drafts are worth to beam search here: each prompt is searched without and with them, in turn."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from specchat.engine.config import EngineConfig
from specchat.engine.drafters.none import NoDrafter
from specchat.engine.errors import EngineError
from specchat.engine.progress import ignore_progress
from specchat.engine.request import AUTO, Request, gamma_text, parse_gamma
from specchat.engine.tools.beams.beams import BeamModels
from specchat.engine.tools.beams.check import check_request, drafter_of
from specchat.engine.tools.beams.found import FoundBeams
from specchat.engine.tools.prompts import SETS, Prompt, PromptSet, load_prompts


@dataclass(frozen=True, slots=True)
class BeamCell:
    """One prompt set with one draft length, against the same searches without drafts."""

    prompts: str
    drafter: str
    gamma: str
    searches: int
    same: int
    """Those that gave the same tokens with drafts and without."""
    steps: int
    """Target passes without drafts."""
    target_passes: int
    tokens_read: int
    plain_tokens_read: int
    seconds: float
    plain_seconds: float

    @property
    def saved(self) -> float:
        """Share of the passes that drafts have saved."""
        return 1 - self.target_passes / self.steps

    @property
    def speedup(self) -> float:
        """Time without drafts over time with them."""
        return self.plain_seconds / self.seconds


@dataclass(frozen=True, slots=True)
class BeamReport:
    """All cells."""

    target: str
    device: str
    dtype: str
    beams: int
    cells: tuple[BeamCell, ...]

    def json(self) -> str:
        """One object."""
        cells = [{**asdict(cell), "saved": cell.saved, "speedup": cell.speedup} for cell in self.cells]
        return json.dumps({**asdict(self), "cells": cells}, indent=2)

    def text(self) -> str:
        """A table."""
        lines = [
            f"Beam search, {self.beams} beams · {self.target} · {self.device} · {self.dtype}",
            "",
            "prompts     drafter    gamma   steps  passes   saved  tokens/pass  without  speedup",
        ]
        lines += [
            f"{cell.prompts:<11} {cell.drafter:<10} {cell.gamma:<5} {cell.steps:>7} {cell.target_passes:>7} "
            f"{cell.saved:>7.0%} {cell.tokens_read / cell.target_passes:>12.1f} "
            f"{cell.plain_tokens_read / cell.steps:>8.1f} {cell.speedup:>7.2f}×"
            for cell in self.cells
        ]
        same, searches = sum(cell.same for cell in self.cells), sum(cell.searches for cell in self.cells)
        return "\n".join([*lines, "", f"{same} of {searches} searches with drafts gave the beams of those without."])


def measure_beams(
    config: EngineConfig,
    beams: int,
    say: Callable[[str], None],
    *,
    drafter: str = AUTO,
    gammas: Sequence[str] = (AUTO,),
    prompts: Sequence[str] = SETS,
    limit: int = 4,
    max_tokens: int = 64,
) -> BeamReport:
    """Search for the beams of prompts.

    Args:
        config: of the models.
        beams: N.
        say: called with one-line progress messages.
        drafter: one of those of beams.
        gammas: draft lengths, as they are typed.
        prompts: names of prompt sets.
        limit: largest number of prompts of each.
        max_tokens: longest reply.

    Raises:
        EngineError: a value is out of range, or a model cannot be had.
    """
    if limit < 1:
        raise EngineError(f"limit is {limit}: it must be at least 1")
    sets = [each.first(limit) for each in load_prompts(prompts)]
    asked = [Request("beams", prompt="?", drafter=drafter, gamma=parse_gamma(g), max_tokens=max_tokens) for g in gammas]
    for request in asked:
        check_request(request, beams, config.draft)
        if request.gamma == 0 or drafter == NoDrafter.name:
            raise EngineError("every prompt is searched without drafts as well: leave gamma 0 and drafter none out")
        if drafter_of(request, config.draft) == NoDrafter.name:
            raise EngineError("beams are drafted by a draft model: name one with --draft")
    say("loading")
    models = BeamModels.load(config, drafter_of(asked[0], config.draft), ignore_progress)
    models.find(replace(asked[0], max_tokens=2), beams)  # what is slow the first time
    cells = [_cell(models, prompt_set, request, beams, say) for prompt_set in sets for request in asked]
    model = models.target.model
    return BeamReport(model.name, model.device.type, model.format, beams, tuple(cells))


def _cell(
    models: BeamModels, prompt_set: PromptSet, request: Request, beams: int, say: Callable[[str], None]
) -> BeamCell:
    drafted, plain = [], []
    for number, prompt in enumerate(prompt_set.prompts, 1):
        say(f"{prompt_set.name}, gamma {gamma_text(request.gamma)}: prompt {number} of {len(prompt_set.prompts)}")
        plain.append(models.find(_about(replace(request, gamma=0), prompt), beams))
        drafted.append(models.find(_about(request, prompt), beams))
    return BeamCell(
        prompts=prompt_set.name,
        drafter=drafted[0].drafter,
        gamma=gamma_text(request.gamma),
        searches=len(plain),
        same=sum(_tokens(one) == _tokens(other) for one, other in zip(drafted, plain, strict=True)),
        steps=sum(each.steps for each in plain),
        target_passes=_sum(drafted, "target_passes"),
        tokens_read=_sum(drafted, "tokens_read"),
        plain_tokens_read=_sum(plain, "tokens_read"),
        seconds=sum(each.seconds for each in drafted),
        plain_seconds=sum(each.seconds for each in plain),
    )


def _about(request: Request, prompt: Prompt) -> Request:
    return replace(request, prompt=None, messages=prompt.messages)


def _tokens(found: FoundBeams) -> list[tuple[int, ...]]:
    return [beam.token_ids for beam in found.beams]


def _sum(found: Sequence[FoundBeams], name: str) -> int:
    return sum(getattr(each, name) for each in found)
