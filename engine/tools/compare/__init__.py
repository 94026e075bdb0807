"""Comparison of two configurations on the same prompts: times, speedup and differences in text, from records.

Importing this package loads neither torch nor transformers.
"""

from specchat.engine.tools.compare.figures import (
    SAMPLED,
    WITHOUT_MODEL,
    Comparison,
    LaneTally,
    first_difference,
    top2_gap,
)
from specchat.engine.tools.compare.report import ComparisonReport, make_report, spread_line
from specchat.engine.tools.compare.runner import Lanes, Trial, run_trials, submit_probe

__all__ = [
    "SAMPLED",
    "WITHOUT_MODEL",
    "Comparison",
    "ComparisonReport",
    "LaneTally",
    "Lanes",
    "Trial",
    "first_difference",
    "make_report",
    "run_trials",
    "spread_line",
    "submit_probe",
    "top2_gap",
]
