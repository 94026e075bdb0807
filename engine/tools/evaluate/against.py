"""The comparison of two targets, or of one in two formats, on texts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from specchat.engine.config import EngineConfig
from specchat.engine.errors import EngineError
from specchat.engine.models.encoder_decoder import require_decoder_only
from specchat.engine.models.tokenizer import check_token_ids
from specchat.engine.progress import ignore_progress
from specchat.engine.tools.evaluate.divergence import measure
from specchat.engine.tools.evaluate.options import EvaluateOptions
from specchat.engine.tools.evaluate.selection import select
from specchat.engine.tools.evaluate.target_comparison import TargetComparison
from specchat.engine.worker.assembly import assemble


@dataclass(frozen=True, slots=True)
class Against:
    """The other target."""

    target: str
    dtype: str = "auto"
    quantize: str = "auto"


def compare_targets(options: EvaluateOptions, other: Against, say: Callable[[str], None]) -> TargetComparison:
    """Let two targets read the same texts.

    Args:
        options: of the command, with the first target; what they say of drafts does not count.
        other: the other target.
        say: called with one-line progress messages.

    Raises:
        EngineError: both are the same, a model cannot be had, its tokens are others, or no text can be used.
    """
    if (options.target, options.dtype, options.quantize) == (other.target, other.dtype, other.quantize):
        raise EngineError("both targets are the same: name another model, or another dtype or quantisation of this one")
    config = _config(options, Against(options.target, options.dtype, options.quantize))
    ours, theirs = assemble(config, ignore_progress), assemble(_config(options, other), ignore_progress)
    for each in (ours, theirs):
        require_decoder_only(each.model, "specchat evaluate reads texts with")
    check_token_ids(ours.model.tokenizer, theirs.model.tokenizer, "other target")
    texts, problems = select(options, ours.model.tokenizer, min(ours.target.context, theirs.target.context))
    found = []
    started = time.perf_counter()
    for number, text in enumerate(texts, 1):
        say(f"text {number} of {len(texts)}: {text.name}")
        found.append(measure(ours.target, theirs.target, text, config.prefill_chunk))
    return TargetComparison(
        target=f"{ours.model.name} ({ours.model.format})",
        against=f"{theirs.model.name} ({theirs.model.format})",
        found=tuple(found),
        seconds=time.perf_counter() - started,
        problems=(*(f"left out: {problem}" for problem in problems), *ours.notices, *theirs.notices),
        name=lambda token: str(ours.model.tokenizer.decode([token])),
    )


def _config(options: EvaluateOptions, which: Against) -> EngineConfig:
    """Of an engine with this target alone."""
    return EngineConfig(
        which.target,
        options.models,
        heads=(),
        device=options.device,
        dtype=which.dtype,
        quantize=which.quantize,
        slots=1,
        context=options.context,
    )
