"""Distillation of a draft head: text written by the target, training against its distributions, evaluation."""

from specchat.engine.speculation.drafters.head.folder import HeadAcceptance, HeadCard
from specchat.engine.tools.distill.command import DistillOptions, distill

__all__ = ["DistillOptions", "HeadAcceptance", "HeadCard", "distill"]
