"""How full the context is, as a small bar with numbers, and in words."""

from __future__ import annotations

from textual.content import Content

from specchat.app.chat.context_meter import Usage
from specchat.app.settings.settings import DROP_OLDEST, KEEP_ENDS, STOP

CELLS = 5
FULL, EMPTY = "▮", "▯"
GOES = {
    STOP: "the prompt is not sent",
    DROP_OLDEST: "the oldest turns are left out",
    KEEP_ENDS: "turns between the first and the last are left out",
}
"""What happens to a prompt that does not fit, by the setting."""


def context_bar(usage: Usage, when_full: str) -> Content:
    """The bar, what is taken and what there is; and what happens if that is too much."""
    cells = min(round(CELLS * usage.total / usage.context), CELLS)
    cells = max(cells, 1) if usage.total else cells
    text = f"{FULL * cells}{EMPTY * (CELLS - cells)} {usage.total:,} / {usage.context:,}"
    if usage.room > 0:
        return Content(text)
    over = f" · {-usage.room:,} too many" if usage.room else " · no room for a reply"
    return Content.styled(f"{text}{over}" if when_full == STOP else f"{text} · {GOES[when_full]}", "$warning")


def context_rows(usage: Usage) -> list[tuple[str, int]]:
    """The parts by name, in tokens."""
    rows = [("history", usage.history), ("prompt", usage.prompt), ("attached", usage.attached)]
    return [*rows, ("room for the reply", max(usage.room, 0))]


def in_words(usage: Usage, when_full: str) -> str:
    """The same, and what happens when it is full."""
    parts = " · ".join(f"{name} {tokens:,}" for name, tokens in context_rows(usage))
    return f"{parts} · of {usage.context:,} tokens\nwhen full: {when_full}, {GOES[when_full]} (/context)"
