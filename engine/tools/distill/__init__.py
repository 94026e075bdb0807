"""Distillation of drafts: text written by the target, training against its distributions, evaluation."""

from specchat.engine.tools.distill.command import distill
from specchat.engine.tools.distill.distilled import Distilled
from specchat.engine.tools.distill.options import COUNTED, DistillOptions

__all__ = ["COUNTED", "DistillOptions", "Distilled", "distill"]
