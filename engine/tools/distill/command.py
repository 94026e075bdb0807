"""Distillation of a draft of any kind."""

from __future__ import annotations

from specchat.engine.errors import EngineError
from specchat.engine.progress import Progress
from specchat.engine.tools.distill.distilled import Distilled
from specchat.engine.tools.distill.kinds import KINDS
from specchat.engine.tools.distill.options import DistillOptions


def distill(options: DistillOptions, progress: Progress) -> Distilled:
    """Make what `options.kind` names.

    Raises:
        EngineError: there is no such kind, or it cannot be made for this target.
    """
    if options.kind not in KINDS:
        raise EngineError(f"kind {options.kind!r} is not there: choose one of {', '.join(KINDS)}")
    return KINDS[options.kind](options, progress)
