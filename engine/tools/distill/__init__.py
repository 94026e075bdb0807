"""Distillation of drafts: text written by the target, training against its distributions, evaluation."""

from specchat.engine.tools.distill.options import COUNTED, Distilled, DistillOptions
from specchat.engine.tools.distill.training import distill

__all__ = ["COUNTED", "DistillOptions", "Distilled", "distill"]
