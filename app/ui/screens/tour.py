"""Speculative decoding explained on a recorded round, one lesson at a time, in the widgets of the chat."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

from specchat.app.chat.lessons import Lesson
from specchat.app.settings.settings import SHOW
from specchat.app.ui.keys import registered
from specchat.app.ui.rendering.token_cursor import Spot
from specchat.app.ui.screens.dialogs import SubScreen, framed
from specchat.app.ui.widgets.bars import TooSmall
from specchat.app.ui.widgets.inspector import Inspector
from specchat.app.ui.widgets.key_bar import KeyBar
from specchat.app.ui.widgets.masthead import Legend
from specchat.app.ui.widgets.transcript import Transcript


class TourScreen(SubScreen[None]):
    """Shows the lessons one after another; the last one leads back to the chat."""

    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (48, "-narrow"), (100, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (12, "-low"), (24, "-tall")]  # noqa: RUF012
    BINDINGS = registered(
        "tour",
        Binding("right,enter,space,n", "turn(1)", "next", key_display="→"),
        Binding("left,backspace,b", "turn(-1)", "back", key_display="←"),
        Binding("escape,q", "dismiss", "to the chat", key_display="esc"),
        Binding("d", "app.run('figures')", "figures"),
    )

    def __init__(self, lessons: Sequence[Lesson]) -> None:
        super().__init__()
        self._lessons = lessons
        self._at = 0
        self._transcript = Transcript(lessons[0].conversation, id="tour-reply")
        self._transcript.set_reactive(Transcript.rejected, SHOW)
        self._transcript.can_focus = False  # its arrow keys would move between tokens
        self._inspector = Inspector(replaying=True, id="tour-token")

    def compose(self) -> ComposeResult:
        """The reply above the explanation, and next to them the details of a token."""
        yield Static(id="tour-head")
        with Horizontal(id="tour-body"):
            with Vertical(id="tour-told"):
                yield self._transcript
                with framed(Vertical(id="tour-text"), "tour", ""):
                    yield Static(id="tour-said")
            yield self._inspector
        yield Legend(id="tour-legend")
        yield KeyBar()
        yield TooSmall(id="too-small")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The first lesson has no previous one."""
        return self._at > 0 if (action, parameters) == ("turn", (-1,)) else super().check_action(action, parameters)

    def action_turn(self, by: int) -> None:
        """The next or previous lesson; after the last one the chat."""
        self._at = max(self._at + by, 0)
        if self._at == len(self._lessons):
            self.dismiss()
        else:
            self._show()

    def _show(self) -> None:
        lesson = self._lessons[self._at]
        names = [(f" {other.name} ", "reverse bold" if other is lesson else "$quiet") for other in self._lessons]
        self.query_one("#tour-head", Static).update(Content.assemble(*names))
        self.query_one("#tour-said", Static).update(Content.assemble((lesson.sentence, "bold"), "\n", lesson.text))
        self.query_one("#tour-text").border_subtitle = f"{self._at + 1} of {len(self._lessons)} · → next · esc leaves"
        self._transcript.show(lesson.conversation)
        self.set_class(lesson.token is not None, "-known")
        if lesson.token is not None:
            self._inspector.show(Spot(lesson.whole, lesson.token))
            if lesson.reply.stepping is None:
                self._transcript.look_at(Spot(lesson.reply, lesson.token))
        self.refresh_bindings()

    on_mount = _show
