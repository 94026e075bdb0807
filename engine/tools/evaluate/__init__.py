"""Evaluation on existing text: the target reads each text once, then any drafters, or another target, are compared."""

from specchat.engine.tools.evaluate.drafters import Alignment, align, evaluate
from specchat.engine.tools.evaluate.targets import Against, compare_targets
from specchat.engine.tools.evaluate.texts import EvaluateOptions

__all__ = ["Against", "Alignment", "EvaluateOptions", "align", "compare_targets", "evaluate"]
