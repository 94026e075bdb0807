"""Pausing between rounds, stepping through them, and moving through a recorded trace."""

from specchat.app.chat.conversation import Conversation
from specchat.app.chat.reply import Reply
from specchat.app.sources.player import Player
from specchat.app.sources.source import Source, Stepper
from specchat.app.ui.rendering.token_cursor import Spot
from specchat.app.ui.screens.chat_layout import ChatBase
from specchat.app.ui.screens.inspection import Inspection

SCRUB_S = 1.0
"""Seconds of a trace that one key press moves."""


class Stepping:
    """Pauses and steps, shows the state of the round in a bar, and moves the player of a replay.

    Args:
        screen: Has the class `-paused` while rounds are held back; shows notices.
        inspection: Knows the reply on screen.
        player: Plays the trace; None in a chat.
    """

    def __init__(self, screen: ChatBase, inspection: Inspection, player: Player | None) -> None:
        self.stepper: Stepper | None = None
        """Holds rounds back; None until the session is connected."""
        self.player, self._screen, self._inspection = player, screen, inspection

    def through(self, source: Source) -> Stepper:
        """Wrap a source, so that its rounds can be held back."""
        self.stepper = Stepper(source)
        return self.stepper

    def toggle(self) -> None:
        """Pause between rounds, or resume."""
        if self.stepper is not None:
            if self.stepper.paused:
                self.stepper.resume()
            else:
                self.stepper.pause()
            self._screen.redraw()

    def step(self) -> None:
        """Show the next part of a round; pauses first."""
        if self.stepper is not None:
            if self.stepper.paused:
                self.stepper.step()
            else:
                self.stepper.pause()
            self._screen.redraw()
            self._inspection.look_at(self._screen.transcript.last_spot() if self._inspection.open else None)
            self._screen.transcript.follow()

    def update(self) -> None:
        """Show the state of the round that is stepped through."""
        if self.stepper is None:
            return
        if self.stepper.paused and self.player is None and not self._inspection.open:
            self.stepper.resume()
        if self.stepper.paused is not self._screen.has_class("-paused"):
            self._screen.set_class(self.stepper.paused, "-paused")
            self._screen.refresh_bindings()
        if self.stepper.paused:
            reply, steps, running = self._inspection.reply, self.stepper.shown, self._screen.requests.running
            last = reply.rounds[-1] if reply.rounds and reply.running else None
            ended = self.player is None and bool(reply.rounds) and not reply.running
            if steps and steps[0][0].request_id in running.replies:
                _, reply = running.replies[steps[0][0].request_id]
            self._screen.widgets.step_bar.show(steps, last, len(reply.rounds) + bool(steps), ended=ended)

    def move(self, what: str, steps: int = 1) -> None:
        """Move through the trace: one of the moves in the table of actions."""
        if self.player is None or self.stepper is None:
            return
        match what:
            case "scrub":
                self.seek(self.player.position + steps * SCRUB_S)
            case "faster":
                self.player.faster(steps)
            case "again":
                self.stepper.resume()
                self.player.restart()
                self._moved(back=True)
            case "step_back":
                self.stepper.pause()
                self._moved(back=self.player.back())
            case "to_rejection":
                self.stepper.pause()
                if self.player.to_rejection():
                    self._moved(back=False)
                    self._inspection.look_at(_last_rejection(self._screen.conversation))
                else:
                    self._screen.notify("no rejection follows in this trace")

    def seek(self, position: float) -> None:
        """Go to a time of the trace, in seconds."""
        if self.player is not None:
            self._moved(back=self.player.seek(position))

    def _moved(self, *, back: bool) -> None:
        """Show the new position; after a move back, all records up to it are repeated."""
        if self.stepper is not None:
            self.stepper.jump(back=back)
        if back:
            self._screen.requests.running.forget()
            self._screen.widgets.transcript.show(Conversation())
            self._inspection.forget()
        self._screen.redraw()


def _last_rejection(conversation: Conversation) -> Spot | None:
    """The last rejected token, if it is in the last round of its reply."""
    replies = [reply for reply in conversation.replies if reply.rounds]
    ended = [reply for reply in replies if reply.rounds[-1].accepted < reply.rounds[-1].tested]
    reply: Reply | None = max(ended, key=lambda reply: reply.rounds[-1].at, default=None)
    if reply is None:
        return None
    return Spot(reply, reply.starts[-1] + reply.rounds[-1].accepted)
