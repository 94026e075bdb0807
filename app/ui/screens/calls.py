"""The dialog about a call of a tool: what would be called with which arguments, and whether it is."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Key
from textual.timer import Timer
from textual.widgets import Static

from specchat.app.chat.parts import fields
from specchat.app.chat.tool_calls import Decision
from specchat.app.sanitize import escape_controls
from specchat.app.ui.keys import registered
from specchat.app.ui.screens.dialogs import Dialog, framed
from specchat.engine import MessagePart

QUIET_S = 0.7
"""Seconds without a key before a decision counts: the dialog may open while the user is typing a prompt."""
LONGEST_NAME, LONGEST_ABOUT = 24, 300
"""Cells of the names of arguments, and characters of the description of a tool."""
_KEYS = (
    ("o", Decision.ONCE, "call it once"),
    ("a", Decision.ALWAYS, "call it, and always call this tool in this chat"),
    ("n", Decision.NEVER, "never call this tool in this chat; the model is told so"),
)


class CallScreen(Dialog[Decision | None]):
    """Returns what the user decides about a call; None stops the reply.

    Args:
        title: of the dialog.
        server: the server of the tool.
        about: the server's description of the tool.
        call: the call.
    """

    BINDINGS = registered(
        "call",
        *(Binding(key, f"decide('{decision}')", decision.value) for key, decision, _ in _KEYS),
        Binding("escape", "dismiss", "stop", key_display="esc"),
    )

    def __init__(self, title: str, server: str, about: str, call: MessagePart) -> None:
        super().__init__(classes="dialog")
        self._title, self._server, self._about, self._call = title, server, about, call
        self._waits: Timer | None = None
        self._decides = False
        """Whether the keys of decisions work."""

    def compose(self) -> ComposeResult:
        """The tool, its arguments, and the decisions."""
        name, server = escape_controls(self._call.name), escape_controls(self._server)
        about = escape_controls(" ".join(self._about.split()))
        with framed(Vertical(id="call"), self._title, "esc stops the reply"):
            said = Content.assemble("The model wants to call ", (name, "bold"), f" of the server {server or '(off)'}.")
            yield Static(said, id="call-tool")
            if about:
                yield Static(Content(about[:LONGEST_ABOUT] + "…" * (len(about) > LONGEST_ABOUT)), id="call-about")
            with VerticalScroll(id="call-fields"):
                yield from self._fields()
            for key, decision, means in _KEYS:
                link = Content.assemble(f"{decision.value:<8}", means).stylize(f"@click=screen.decide('{decision}')")
                yield Static(Content.assemble((f" {key} ", "bold $primary"), link), classes="call-decision")

    def on_mount(self) -> None:
        """Wait until no key is pressed."""
        self.query_one(VerticalScroll).focus()
        self._wait()

    def on_key(self, event: Key) -> None:  # noqa: ARG002  the handler's signature
        """Wait longer: the key may belong to a prompt."""
        if not self._decides:
            self._wait()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Decisions count once no key was pressed for a moment."""
        if action == "decide":
            return self._decides or None
        return super().check_action(action, parameters)

    def action_decide(self, decision: str) -> None:
        """Decide."""
        self.dismiss(Decision(decision))

    def _wait(self) -> None:
        if self._waits is not None:
            self._waits.stop()
        if QUIET_S:
            self._waits = self.set_timer(QUIET_S, self._begin)
        else:
            self._begin()

    def _begin(self) -> None:
        self._decides = True
        self.refresh_bindings()

    def _fields(self) -> ComposeResult:
        given = fields(self._call)
        if not given:
            yield Static(Content.styled("no arguments", "$quiet"))
        width = min(max((len(name) for name, _, _ in given), default=0), LONGEST_NAME)
        for name, kind, value in given:
            label = Static(Content(escape_controls(name)), classes="call-name")
            label.styles.width = width + 2
            shown = Content(escape_controls(value)) if value else Content.styled("(empty)", "$quiet")
            yield Horizontal(label, Static(Content(kind), classes="call-kind"), Static(shown), classes="call-field")
