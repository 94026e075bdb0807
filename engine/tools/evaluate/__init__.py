"""Evaluation of drafters on text that is there already: one reading by the target, then any number of drafters."""

from specchat.engine.tools.evaluate.evaluation import evaluate
from specchat.engine.tools.evaluate.options import EvaluateOptions

__all__ = ["EvaluateOptions", "evaluate"]
