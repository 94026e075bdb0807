"""Rich style of each fate: Okabe and Ito's colour-blind safe colours, and an attribute so that none relies on colour.

The terminal's own foreground is for tokens that nobody drafted; the attributes stay when colours are off.
"""

from __future__ import annotations

from specchat.engine import Fate

GREEN = "#009e73"
VERMILION = "#d55e00"
ORANGE = "#e69f00"
SKY_BLUE = "#56b4e9"

STYLES: dict[Fate, str] = {
    Fate.ACCEPTED: GREEN,
    Fate.REJECTED: f"strike dim {VERMILION}",
    Fate.DISCARDED: "dim",
    Fate.CORRECTION: f"underline {ORANGE}",
    Fate.BONUS: f"bold {SKY_BLUE}",
    Fate.PLAIN: "",
    Fate.UNKNOWN: "italic",
}
"""Rich styles."""
