"""The one line that stands for the thinking at the beginning of a reply."""

from __future__ import annotations

from specchat.app.chat.reply import Reply, Stage

FOLDED_SIGN, OPEN_SIGN = "▸", "▾"


def thought_title(reply: Reply, *, opened: bool) -> str:
    """Whether it goes on, how many tokens it has, and how long it took; empty for a reply without thinking."""
    figures = reply.figures.thought or reply.thought.figures()
    if figures is None:
        return ""
    going_on = reply.thought.running and reply.stage is Stage.ANSWERING
    return f"{OPEN_SIGN if opened else FOLDED_SIGN} {figures.words(going_on=going_on)}"
