"""Going back and forth through a recorded trace."""

from __future__ import annotations

from collections.abc import Callable

from specchat.app.chat.conversation import Conversation
from specchat.app.chat.reply import Reply
from specchat.app.chat.request_manager import RequestManager
from specchat.app.sources.player import Player
from specchat.app.ui.rendering.token_cursor import Spot
from specchat.app.ui.screens.inspection import Inspection
from specchat.app.ui.screens.stepping import Stepping
from specchat.app.ui.widgets.transcript import Transcript

SCRUB_S = 1.0
"""Seconds of a trace that one key goes over."""


class ReplayControls:
    """The keys that move a player.

    Args:
        player: Plays the trace.
        stepping: Paused by keys that go round by round.
        requests: Forgets the replies when the trace is played again from an earlier place.
        transcript: Shows the replay's conversation.
        inspection: Shows the rejection that was gone to.
        redraw: Takes in what has come, and draws the screen.
    """

    def __init__(
        self,
        player: Player,
        stepping: Stepping,
        requests: RequestManager,
        transcript: Transcript,
        inspection: Inspection,
        redraw: Callable[[], None],
    ) -> None:
        self.player = player
        self._stepping = stepping
        self._requests = requests
        self._transcript = transcript
        self._inspection = inspection
        self._redraw = redraw

    def move(self, what: str, steps: int) -> bool:
        """Do what a key stands for; whether it could be done."""
        match what:
            case "scrub":
                self.seek(self.player.position + steps * SCRUB_S)
            case "faster":
                self.player.faster(steps)
            case "again":
                self._restart()
            case "step_back":
                self._back()
            case "to_rejection":
                return self._to_rejection()
        return True

    def seek(self, position: float) -> None:
        """Go to a time of the trace, in seconds."""
        self._moved(back=self.player.seek(position))

    def _back(self) -> None:
        """Go to just before the round that was shown last."""
        self._stepping.pause()
        self._moved(back=self.player.back())

    def _to_rejection(self) -> bool:
        """Go to the next round with a rejection, and select what was rejected; whether there is one."""
        self._stepping.pause()
        if not self.player.to_rejection():
            return False
        self._moved(back=False)
        replies = [turn.reply for turn in self._transcript.conversation.turns if turn.reply and turn.reply.rounds]
        self._inspection.look_at(_last_rejection(replies))
        return True

    def _restart(self) -> None:
        """Play the trace from its start."""
        self._stepping.resume()
        self.player.restart()
        self._moved(back=True)

    def _moved(self, *, back: bool) -> None:
        self._stepping.jump(back=back)
        if back:
            self._requests.running.forget()
            self._transcript.show(Conversation())
            self._inspection.forget()
        self._redraw()


def _last_rejection(replies: list[Reply]) -> Spot | None:
    """The token that was rejected last, in the last round of one of the replies."""
    ended = [reply for reply in replies if reply.rounds[-1].accepted < reply.rounds[-1].tested]
    reply = max(ended, key=lambda reply: reply.rounds[-1].at, default=None)
    if reply is None:
        return None
    return Spot(reply, reply.starts[-1] + reply.rounds[-1].accepted)
