"""The notes below a reply: its progress, how it ended, and its figures."""

from collections.abc import Iterator

from rich.segment import Segment
from rich.style import Style

from specchat.app.chat.reply import Reply
from specchat.app.chat.reply_stage import ENDINGS, Stage
from specchat.app.ui.rendering.figures import summary
from specchat.app.ui.rendering.styles import TranscriptStyles
from specchat.app.ui.rendering.token_lines import TokenLines
from specchat.app.ui.rendering.tool_lines import FOLDED_SIGN, OPEN_SIGN
from specchat.engine import Fate, FinishReason, MessagePart

_COPY = (("copy", "copy"),)
LINKS = {
    FinishReason.LENGTH: (*_COPY, ("continue", "longer")),
    FinishReason.REPEATS: (*_COPY, ("continue", "continue"), ("penalise", "try again with a penalty")),
}
"""Links below a reply that ended for this reason: what a click asks for, and their texts."""
LINK_TEXTS = frozenset(text for links in LINKS.values() for _, text in links)
STOPPING = "◌ stopping…"
COMPLETE = "✓"
"""Before the word for a reply that needs none, unless it has no figures."""
SIGNS = {
    FinishReason.EOS: COMPLETE, FinishReason.STOP: COMPLETE, FinishReason.LENGTH: "…", FinishReason.CONTEXT: "…",
    FinishReason.REPEATS: "‖", FinishReason.CANCELLED: "■",
}  # fmt: skip
"""Before the word for how a reply ended: complete, cut off, or stopped."""


def note_lines(reply: Reply, width: int) -> list[tuple[str, bool]]:
    """The lines below a reply at a width in cells; True marks a failure.

    Figures that do not fit are left out, last ones first; a sentence is wrapped.
    """
    lines: list[tuple[str, bool]] = []
    for parts, failed in _notes(reply):
        while len(parts) > 1 and len(" · ".join(parts)) > width:
            parts = parts[:-1]
        wrapped = TokenLines(width)
        wrapped.append([(" · ".join(parts), Fate.PLAIN)], 0)
        lines += [("".join(piece.text for piece in line), failed) for line in wrapped.lines]
    return lines


def _notes(reply: Reply) -> Iterator[tuple[list[str], bool]]:
    """Each note as the parts of a line, and whether it tells of a failure."""
    figures = summary(reply.figures, with_speedup=not reply.side_by_side)
    if not figures and reply.stage is Stage.ENDED and reply.has_text:  # of another program
        figures = reply.origin
    elif reply.names_model:
        figures = [*reply.origin[:1], *figures]
    if reply.running and reply.stopping:
        yield [STOPPING, *figures], False
        return
    match reply.stage:
        case Stage.WAITING:
            yield ["◌ paused · p resumes" if reply.held else "◌ waiting for a free slot"], False
        case Stage.READING:
            done, total = reply.prefilled
            yield [f"◌ reading the prompt, {done} of {total} tokens"], False
        case Stage.ANSWERING:
            yield figures, False
        case Stage.INTERRUPTED:
            yield ["◌ interrupted", *figures], False
        case Stage.ENDED if reply.reason is FinishReason.ERROR:
            yield [f"✗ {reply.message or ENDINGS[FinishReason.ERROR]}"], True
            if figures:
                yield figures, False
        case Stage.ENDED:
            reason = reply.reason or FinishReason.EOS
            ending = [] if figures and SIGNS[reason] == COMPLETE else [f"{SIGNS[reason]} {ENDINGS[reason]}"]
            yield [*ending, *figures], False


def call_lines(reply: Reply) -> tuple[tuple[MessagePart, str], ...]:
    """The calls of a reply, each with what happens to it; empty for one with a result."""
    if not (calls := reply.calls):
        return ()
    if reply.calling is not None:
        return tuple((call, reply.calling.words(call)) for call in calls)
    unanswered = () if reply.running else reply.unanswered
    return tuple((call, "no result" if call in unanswered else "") for call in calls)


def thought_title(reply: Reply, *, opened: bool) -> str:
    """State, number of tokens and duration of the thinking; empty for a reply without thinking."""
    figures = reply.figures.thought or reply.thought.figures()
    if figures is None:
        return ""
    running = reply.thought.running and reply.stage is Stage.ANSWERING
    return f"{OPEN_SIGN if opened else FOLDED_SIGN} {figures.words(running=running)}"


def _links(reply: Reply, *, forkable: bool) -> tuple[tuple[str, str], ...]:
    return LINKS.get(reply.reason, _COPY) if forkable and reply.reason else _COPY


def links_width(reply: Reply, *, forkable: bool) -> int:
    """Cells that the links below a reply take."""
    return sum(len(text) + 2 for _, text in _links(reply, forkable=forkable))


def reply_links(reply: Reply, styles: TranscriptStyles, *, forkable: bool) -> Iterator[Segment]:
    """Links below an ended reply: copy it, and what to do with one that is cut off or repeats itself."""
    for what, text in _links(reply, forkable=forkable):
        if not reply.running and (reply.text or reply.thinking):
            link = Style(meta={"@click": f"request('{what}', {id(reply)})"})
            yield from (Segment("  ", styles.base), Segment(text, styles["link"] + link))
