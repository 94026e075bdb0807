"""Evaluation on text that is there already: one reading by the target, then any drafters, or another target."""

from specchat.engine.tools.evaluate.against import Against, compare_targets
from specchat.engine.tools.evaluate.alignment import Alignment, align
from specchat.engine.tools.evaluate.evaluation import evaluate
from specchat.engine.tools.evaluate.options import EvaluateOptions

__all__ = ["Against", "Alignment", "EvaluateOptions", "align", "compare_targets", "evaluate"]
