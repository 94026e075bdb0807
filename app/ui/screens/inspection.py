"""Looking closely at a conversation: the selected token, what is recorded of it, and its round on the timeline."""

from __future__ import annotations

from textual.screen import Screen

from specchat.app.chat import branches
from specchat.app.chat.reply import Reply, ran_together
from specchat.app.chat.request_manager import RequestManager
from specchat.app.ui.rendering.token_cursor import Spot
from specchat.app.ui.rendering.verdict import detail_of
from specchat.app.ui.screens.panes import Panes
from specchat.app.ui.widgets.inspector import Inspector
from specchat.app.ui.widgets.timeline import Timeline
from specchat.app.ui.widgets.transcript import Transcript
from specchat.engine import Fate

DETAIL = 8
"""Top-k that rounds record while the inspector is open. It costs a tenth of a round on a CPU, so not always."""


class Inspection:
    """Keeps transcript, inspector and timeline at the same token.

    Args:
        screen: Has the class `-inspect` while the inspector is open.
        requests: Asked for more detail while it is.
        transcript: Shows the conversation.
        timeline: Shows the rounds.
        inspector: Shows one token.
        panes: What else is on the screen.
    """

    def __init__(
        self,
        screen: Screen[None],
        requests: RequestManager,
        transcript: Transcript,
        timeline: Timeline,
        inspector: Inspector,
        panes: Panes,
    ) -> None:
        self.spot: Spot | None = None
        """The selected token."""
        self.no_reply = Reply()
        """Stands in where the conversation has none yet: it names drafter and γ."""
        self._screen = screen
        self._requests = requests
        self._transcript = transcript
        self._timeline = timeline
        self._inspector = inspector
        self._panes = panes
        self._lanes: list[Reply] = []
        self._own = 0
        """How many of the lanes, from the first on, are of the conversation that is shown."""
        self._names: dict[Reply, str] = {}

    @property
    def open(self) -> bool:
        """Whether the inspector is shown."""
        return self._screen.has_class("-inspect")

    @property
    def active(self) -> bool:
        """Whether the user looks at a token, or through the timeline."""
        return self.open or self.spot is not None or self._timeline.has_focus

    @property
    def reply(self) -> Reply:
        """The reply that panel and timeline are about: that of the selected token, else the last one."""
        if self.spot is not None:
            return self.spot.reply
        replies = [turn.reply for turn in self._transcript.conversation.turns if turn.reply is not None]
        return replies[-1] if replies else self.no_reply

    def look_at(self, spot: Spot | None) -> None:
        """Select a token wherever it is shown, and show what is known of it; None selects none."""
        self.spot = spot
        self._transcript.look_at(spot)
        if spot is None:
            self._timeline.pick(None)
        else:
            self._follow_lanes()
            self._timeline.pick(spot.reply, spot.reply.numbered.round_of(spot.token))
        if self.open:
            self._examine()
            self._inspector.show(spot)

    def select(self, spot: Spot) -> None:
        """Open the inspector on a token that was clicked on, or moved to."""
        if not self.open:
            self._open()
        self.look_at(spot)

    def select_round(self, reply: Reply, index: int) -> None:
        """Select the first token of a round, by its index in the reply."""
        last = reply.starts[index + 1] if index + 1 < len(reply.starts) else reply.tokens
        if reply.starts[index] < last:
            self.look_at(Spot(reply, reply.starts[index]))

    def toggle(self) -> None:
        """Open the inspector on the last tested token; or close it."""
        if self.open:
            self.close()
            self._panes.go_home()
            return
        self._open()
        self.look_at(self.spot or self._transcript.last_spot())

    def close(self) -> None:
        """Close the inspector and select nothing."""
        if self.open:
            self._screen.remove_class("-inspect")
            self._requests.running.set_detail(0)
        self.look_at(None)

    def forget(self) -> None:
        """Another conversation is shown: select nothing, and leave the lanes of the one before."""
        self._lanes = []
        self.look_at(None)

    def update(self) -> None:
        """Follow the rounds: the timeline grows, and an inspector that waits for its first token gets it."""
        self._follow_lanes()
        if self.open and self.spot is None:
            spot = self._transcript.last_spot()
            if spot is not None:
                self.look_at(spot)
        elif self.open and self.spot is not None:
            if self.spot.token not in self.spot.reply.computed:
                self._examine()
            self._inspector.show(self.spot)

    def _examine(self) -> None:
        """Have the engine compute what was not recorded of the selected token, once its reply has ended."""
        if self.spot is None or self.spot.reply.running:
            return
        record, token = self.spot.reply.token(self.spot.token)
        if token.fate is not Fate.DISCARDED and detail_of(record, token) is None:
            branches.examine(self._requests, self._transcript.conversation, self.spot.reply, self.spot.token, DETAIL)

    def _open(self) -> None:
        self._screen.add_class("-inspect")
        self._transcript.markdown = False
        if self._screen.has_class("-narrow") and not self._screen.has_class("-pane-rounds"):
            self._panes.show("chat")
        self._transcript.focus()
        self._requests.running.set_detail(DETAIL)

    def _follow_lanes(self) -> None:
        """Show the lane of the shown reply, and of all replies that have run beside it."""
        shown = self.reply
        if shown not in self._lanes:
            own = [turn.reply for turn in self._transcript.conversation.turns if turn.reply is not None]
            # What has not been read was not shown: it stands far above.
            near = [reply for reply in own if reply is shown or (reply.loaded and ran_together(reply, shown))]
            self._lanes = near or [shown]
            self._own, self._names = len(self._lanes), {}
        running = [turn.reply for _, turn in self._requests.replies.values() if turn.reply is not None]
        beside = [reply for reply in running if reply not in self._lanes] if shown in running else []
        self._lanes += beside
        self._timeline.show(self._lanes, [self._name(reply) for reply in self._lanes], self._own)

    def _name(self, reply: Reply) -> str:
        """What a lane is called: this chat, its prompt where the chat has several, or the title of another chat."""
        if reply not in self._names:
            turns = self._transcript.conversation.turns
            prompt = next((turn.prompt for turn in turns if reply in turn.replies), None)
            title = next((c.title for c, turn in self._requests.replies.values() if reply in turn.replies), "")
            several = " ".join(prompt.split()) if prompt and self._own > 1 else "this chat"
            self._names[reply] = title if prompt is None else several
        return self._names[reply]
