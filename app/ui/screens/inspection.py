"""Inspecting a reply: the selected token, its round on the timeline, and the figures of the reply."""

from specchat.app.chat import branches
from specchat.app.chat.reply import Reply, shared_a_batch
from specchat.app.ui.rendering.token_cursor import Spot
from specchat.app.ui.rendering.verdict import detail_of
from specchat.app.ui.screens.chat_layout import ChatBase
from specchat.app.ui.screens.writing import Gauge
from specchat.engine import Fate

DETAIL = 8
"""Top-k that rounds record while the inspector is open. It costs a tenth of a round on a CPU, so not always."""


class Inspection:
    """Shows the same token in transcript, inspector and timeline, and the figures of its reply in the panel.

    The screen has the class `-inspect` while the inspector is open.
    """

    def __init__(self, screen: ChatBase, gauge: Gauge) -> None:
        self.spot: Spot | None = None
        """The selected token."""
        self._screen, self._gauge = screen, gauge
        self._requests = screen.requests
        widgets = screen.widgets
        self._transcript, self._timeline, self._inspector = widgets.transcript, widgets.timeline, widgets.inspector
        self._lanes: list[Reply] = []
        self._own = 0
        """Number of lanes, from the first, that belong to the conversation on screen."""
        self._names: dict[Reply, str] = {}
        self._updates = 0
        """Number of updates since figures were taken."""
        self._state: tuple[object, ...] | None = None
        """The figures as last drawn."""

    @property
    def open(self) -> bool:
        """Whether the inspector is open."""
        return self._screen.has_class("-inspect")

    @property
    def shown(self) -> bool:
        """Whether the inspector is on screen: not below a tab without room for it."""
        panes = "-pane-chat", "-pane-rounds"
        return self.open and (not self._screen.has_class("-narrow") or any(map(self._screen.has_class, panes)))

    @property
    def active(self) -> bool:
        """Whether a token is selected or the timeline has the focus."""
        return self.open or self.spot is not None or self._timeline.has_focus

    @property
    def reply(self) -> Reply:
        """The reply that panel and timeline show: that of the selected token, else the last one."""
        if self.spot is not None:
            return self.spot.reply
        replies = self._transcript.conversation.replies
        return replies[-1] if replies else self._screen.widgets.no_reply

    def look_at(self, spot: Spot | None) -> None:
        """Select a token and show its details; None selects none."""
        self.spot = spot
        self._transcript.look_at(spot)
        if spot is None:
            self._timeline.pick(None)
        else:
            self._follow_lanes()
            self._timeline.pick(spot.reply, spot.reply.round_of(spot.token))
        if self.open:
            self._examine()
            self._inspector.show(spot)

    def select(self, spot: Spot) -> None:
        """Open the inspector on a token."""
        if not self.open:
            self._open()
        self.look_at(spot)

    def select_round(self, reply: Reply, index: int) -> None:
        """Select the first token of a round, by its index in the reply."""
        first, end, *_ = *reply.starts[index : index + 2], reply.tokens, reply.tokens
        if first < end:
            self.look_at(Spot(reply, first))

    def toggle(self) -> None:
        """Open the inspector on the selected or the last tested token; or close it if it is visible."""
        if self.shown:
            self.close()
            self._screen.panes.go_home()
            return
        self._open()
        self.look_at(self.spot or self._transcript.last_spot())

    def close(self) -> None:
        """Close the inspector and select nothing."""
        if self.open:
            self._screen.remove_class("-inspect")
            self._requests.running.set_detail(0)
            self.toggle_lines(on=False)
            self._screen.refresh_bindings()
        self.look_at(None)

    def toggle_lines(self, *, on: bool | None = None) -> None:
        """One round per line, as in Figure 1 of Leviathan et al. 2023, or running text."""
        self._transcript.by_round = not self._transcript.by_round if on is None else on

    def forget(self) -> None:
        """Another conversation is shown: select nothing, and clear lanes and figures."""
        self._lanes, self._state = [], None
        self.look_at(None)

    def update(self) -> None:
        """Show new rounds on the timeline, and select the first token if the inspector is open without one."""
        self._follow_lanes()
        if self.open and self.spot is None:
            if (spot := self._transcript.last_spot()) is not None:
                self.look_at(spot)
        elif self.open and self.spot is not None:
            if self.spot.token not in self.spot.reply.computed:
                self._examine()
            self._inspector.show(self.spot)

    # Figures

    def draw_again(self) -> None:
        """Draw all figures with the next update."""
        self._state = None

    def take_figures(self) -> bool:
        """Take the figures of the running replies if due; returns whether it was. Called once with each update."""
        self._updates += 1
        if self._updates < self._screen.pace.figures_every:
            return False
        self._updates = 0
        for reply in self._screen.conversation.all_running:
            reply.take_figures()
        return True

    def draw_figures(self, *, taken: bool) -> None:
        """Draw changes in panel, timeline and inspector; `taken` says whether figures have just been taken."""
        reply = self.reply
        held = self._screen.has_class("-paused")
        state = (reply, reply.running, reply.stage, reply.figures, held)
        if state == self._state:
            if taken:
                self.update()  # other lanes may have new rounds
            return
        if self._state is None or state[:2] != self._state[:2]:
            self._screen.refresh_bindings()
            if not reply.running:
                self._gauge.ask()
            self._gauge.show()
            self._screen.widgets.composer.cursor_blink = not reply.running  # a blinking cursor is drawn all the time
        self._state = state
        self._screen.widgets.panel.show(reply, held=held)
        self.update()

    # Shared parts

    def _examine(self) -> None:
        """Let the engine compute unrecorded details of the selected token, once its reply has ended."""
        if self.spot is None or self.spot.reply.running:
            return
        record, token = self.spot.reply.token(self.spot.token)
        if token.fate is not Fate.DISCARDED and detail_of(record, token) is None:
            branches.examine(self._requests, self._transcript.conversation, self.spot.reply, self.spot.token, DETAIL)

    def _open(self) -> None:
        self._screen.add_class("-inspect")
        self._transcript.markdown = False
        if not self.shown:
            self._screen.panes.show("chat")
        self._transcript.focus()
        self._screen.refresh_bindings()
        self._requests.running.set_detail(DETAIL)

    def _follow_lanes(self) -> None:
        """Show the lane of the shown reply, and of all replies that ran at the same time."""
        shown = self.reply
        if shown not in self._lanes:
            own = self._transcript.conversation.replies
            # Replies that are not loaded yet are far above the visible ones.
            near = [reply for reply in own if reply is shown or (reply.loaded and shared_a_batch(reply, shown))]
            self._lanes = near or [shown]
            self._own, self._names = len(self._lanes), {}
        every = (reply for _, reply in self._requests.replies.values())
        running = [reply for reply in every if reply.parent is not None and reply.parent.shown is reply]
        self._lanes += [reply for reply in running if reply not in self._lanes] if shown in running else []
        self._timeline.show(self._lanes, [self._name(reply) for reply in self._lanes], self._own)

    def _name(self, reply: Reply) -> str:
        """Name of a lane: this chat, its prompt if the chat has several lanes, or the title of another chat."""
        if reply not in self._names:
            prompt = self._transcript.conversation.prompt_of(reply)
            title = next((c.title for c, other in self._requests.replies.values() if reply is other), "")
            several = " ".join(prompt.text.split()) if prompt and prompt.text and self._own > 1 else "this chat"
            self._names[reply] = title if prompt is None else several
        return self._names[reply]
