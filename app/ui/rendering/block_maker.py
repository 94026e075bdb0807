"""Makes the blocks of a transcript, and knows the styles they are drawn with."""

from __future__ import annotations

from collections.abc import Callable

from textual.widget import Widget

from specchat.app.chat.conversation import Turn
from specchat.app.chat.reply import Reply
from specchat.app.ui.pace import Pace
from specchat.app.ui.rendering.block import INDENT, Block
from specchat.app.ui.rendering.block_stack import TurnOrReply
from specchat.app.ui.rendering.live_markdown import LiveMarkdown
from specchat.app.ui.rendering.prompt_block import PromptBlock
from specchat.app.ui.rendering.reply_block import ReplyBlock
from specchat.app.ui.rendering.token_cursor import Spot
from specchat.app.ui.rendering.transcript_styles import TranscriptStyles, styles_of


class BlockMaker:
    """Makes blocks for one widget, whose component classes say what they look like; `pace` is how often it is drawn."""

    def __init__(self, view: Widget, pace: Callable[[], Pace]) -> None:
        self._view = view
        self._pace = pace
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
        self,
        part: TurnOrReply,
        width: int,
        spot: Spot | None,
        *,
        rejected: str,
        markdown: bool,
        by_round: bool,
        thoughts: bool,
    ) -> Block:
        """The block of a prompt or a reply, in which the selected token is marked if it has it."""
        if isinstance(part, Turn):
            return PromptBlock(part, width)
        lines = self._markdown(part, width - INDENT) if markdown else None
        block = ReplyBlock(part, width, rejected=rejected, markdown=lines, by_round=by_round, thoughts=thoughts)
        if spot is not None and part is spot.reply:
            block.select(spot.token)
        return block

    def _markdown(self, reply: Reply, width: int) -> LiveMarkdown:
        """What renders a reply as Markdown."""
        from specchat.app.ui.rendering.markdown import MarkdownRenderer  # a start need not wait for it

        app, identity = self._view.app, id(reply)
        dark = app.current_theme.dark

        def copy(number: int) -> str:
            return f"request('code', {identity}, ({number},))"

        return LiveMarkdown(MarkdownRenderer(app.console, width, self.styles, dark=dark, copy=copy), self._pace)
