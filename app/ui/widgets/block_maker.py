"""Makes the blocks of a transcript, and knows the styles they are drawn with."""

from __future__ import annotations

from textual.strip import Strip
from textual.widget import Widget

from specchat.app.chat.conversation import Turn
from specchat.app.ui.widgets.block_stack import TurnOrReply
from specchat.app.ui.widgets.blocks import Block, PromptBlock, ReplyBlock
from specchat.app.ui.widgets.token_cursor import Spot
from specchat.app.ui.widgets.transcript_styles import TranscriptStyles, styles_of


class BlockMaker:
    """Makes blocks for one widget, whose component classes say what they look like."""

    def __init__(self, view: Widget) -> None:
        self._view = view
        self._styles: TranscriptStyles | None = None
        """Resolved when first needed, for one theme."""

    @property
    def styles(self) -> TranscriptStyles:
        """Those of the present theme."""
        if self._styles is None:
            self._styles = styles_of(self._view.rich_style, self._view.get_component_rich_style)
        return self._styles

    def forget_styles(self) -> None:
        """Another theme."""
        self._styles = None

    def make(
        self, part: TurnOrReply, width: int, spot: Spot | None, *, rejected: str, markdown: bool, by_round: bool
    ) -> Block:
        """The block of a prompt or a reply, in which the selected token is marked if it has it."""
        if isinstance(part, Turn):
            return PromptBlock(part, width)
        render = self._render_markdown if markdown else None
        block = ReplyBlock(part, width, rejected=rejected, markdown=render, by_round=by_round)
        if spot is not None and part is spot.reply:
            block.select(spot.token)
        return block

    def _render_markdown(self, text: str, width: int) -> list[Strip]:
        from specchat.app.ui.widgets.markdown import markdown_strips

        app = self._view.app
        return markdown_strips(app.console, text, width, self.styles, dark=app.current_theme.dark)
