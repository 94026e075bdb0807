"""What the model was not told when it wrote the last reply, since not all of the chat fitted into the context."""

from __future__ import annotations

from collections.abc import Container, Sequence

from specchat.app.chat.conversation import Turn
from specchat.app.ui.rendering.block import Block
from specchat.app.ui.rendering.block_stack import TurnOrReply

GAP = "┄┄ the model was not told the {count} above ┄┄"


def mark_untold(block: Block, part: TurnOrReply, turns: Sequence[Turn], left_out: Container[Turn]) -> None:
    """Make a block grey whose turn was left out; behind the last one of several in a row stands how many there are.

    Args:
        block: Shows the part.
        part: A prompt or a reply.
        turns: The path.
        left_out: Those that the model was not told.
    """
    place = next((n for n, turn in enumerate(turns) if turn is part or turn.reply is part), None)
    if place is None or turns[place] not in left_out:
        return
    block.told = False
    ends = place + 1 == len(turns) or turns[place + 1] not in left_out
    if ends and part is turns[place].reply:
        first = place
        while first and turns[first - 1] in left_out:
            first -= 1
        count = place - first + 1
        block.gap = GAP.format(count=f"{count} messages" if count > 1 else "message")
