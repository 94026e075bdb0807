"""Checks that speculation leaves the output unchanged, on this machine with given models.

`run` runs the checks.
"""

from specchat.engine.tools.lossless.command import LosslessOptions, run

__all__ = ["LosslessOptions", "run"]
