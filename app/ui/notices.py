"""Sentences that are shown for a while below the composer."""

from __future__ import annotations

from textual.app import App
from textual.notifications import SeverityLevel

NOTICE_S = 8.0
"""Seconds that a notice stays."""
STILL_STARTING = "specchat is still starting: try again in a moment"


def say(app: App[None], sentence: str, severity: SeverityLevel = "information") -> None:
    """Show a notice."""
    app.notify(sentence, severity=severity, timeout=NOTICE_S)
