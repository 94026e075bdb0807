"""Beam search, with drafts or without: the same beams in fewer passes of the target."""

from specchat.engine.tools.beams.beams import find_beams
from specchat.engine.tools.beams.found import FoundBeam, FoundBeams
from specchat.engine.tools.beams.measure import BeamReport, measure_beams

__all__ = ["BeamReport", "FoundBeam", "FoundBeams", "find_beams", "measure_beams"]
