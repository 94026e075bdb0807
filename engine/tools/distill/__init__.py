"""Distillation of drafts: text written by the target, training against its distributions, evaluation."""

from specchat.engine.tools.distill.text import read_turns
from specchat.engine.tools.distill.training import distill
from specchat.engine.tools.distill.work_folder import COUNTED, Distilled, DistillOptions

__all__ = ["COUNTED", "DistillOptions", "Distilled", "distill", "read_turns"]
