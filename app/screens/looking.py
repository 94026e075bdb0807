"""The part of the chat screen that looks closely: tokens, rounds, steps, and the ways through a replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.screen import Screen

from app.conversation import Conversation
from app.player import Player
from app.reply import Reply, ran_together
from app.widgets.compositor import NarrowCompositor
from app.widgets.inspector import Inspector
from app.widgets.replay_bar import ReplayBar
from app.widgets.step_bar import StepBar
from app.widgets.timeline import Timeline
from app.widgets.token_cursor import Spot, TokenCursor
from app.widgets.transcript import Transcript

if TYPE_CHECKING:
    from app.specchat import SpecChat

DETAIL = 8
"""Top-k that rounds record while the inspector is open. It costs a tenth of a round on a CPU, so not always."""
SCRUB_S = 1.0
"""Seconds of a trace that one key goes over."""


class Looking(Screen[None]):
    """Keys and messages of the views. `ChatScreen` lays them out and says when to update."""

    app: SpecChat
    BINDINGS: ClassVar[list[BindingType]] = [
        # Priority where the composer has other plans for a key; letters work where nothing is typed.
        Binding("f6", "inspect", "inspect", priority=True),
        Binding("i", "inspect", "Inspect", show=False),
        Binding("ctrl+l,l", "timeline", "rounds", key_display="^l"),
        Binding("f7", "step", "step", priority=True),
        Binding("n", "step", "Step", show=False),
        Binding("f10,p", "hold", "Pause", show=False),
        Binding("ctrl+f", "by_round", "Figure 1", show=False, priority=True),
        Binding("f", "by_round", "Figure 1", show=False),
        Binding("f12,d", "app.definitions", "figures", key_display="f12", show=False),
        Binding("left", "scrub(-1)", "back", show=False),
        Binding("right", "scrub(1)", "forward", show=False),
        Binding("comma", "step_back", "round back", show=False),
        Binding("full_stop", "step", "next part of the round", show=False),
        Binding("x", "to_rejection", "next rejection", show=False),
    ]

    conversation: Conversation
    _transcript: Transcript

    def __init__(self, classes: str, player: Player | None) -> None:
        super().__init__(classes=classes)
        self._compositor = NarrowCompositor()
        self._player = player
        self._inspector = Inspector(replaying=player is not None, id="inspector")
        self._timeline = Timeline(id="timeline")
        self._step_bar = StepBar(id="steps")
        self._spot: Spot | None = None
        self._lanes: list[Reply] = []

    # What is shown

    @property
    def looking(self) -> bool:
        """Whether the user looks at a token, or through the timeline."""
        return self.has_class("-inspect") or self._spot is not None or self._timeline.has_focus

    def look_at(self, spot: Spot | None) -> None:
        """Mark a token, wherever it is shown, and show what is known of it."""
        self._spot = spot
        self._transcript.look_at(spot)
        if spot is None:
            self._timeline.pick(None)
        else:
            self._follow_lanes()
            self._timeline.pick(spot.reply, spot.reply.round_of(spot.token))
        if self.has_class("-inspect"):
            self._inspector.show(spot)

    def stop_looking(self) -> None:
        """Close the inspector and mark nothing."""
        if self.has_class("-inspect"):
            self.remove_class("-inspect")
            self.app.exchange.look(0)
        self.look_at(None)

    def update_views(self) -> None:
        """As often as the panel is drawn: the timeline grows; an inspector that waits for its first token gets it."""
        self._follow_lanes()
        if self.has_class("-inspect") and self._spot is None:
            spot = self._transcript.last_spot()
            if spot is not None:
                self.look_at(spot)

    def update_steps(self) -> None:
        """What the round that is stepped through has come to."""
        stepper = self.app.stepper
        paused = stepper is not None and stepper.paused
        if paused is not self.has_class("-paused"):
            self.set_class(paused, "-paused")
            self.refresh_bindings()
        if stepper is not None and paused:
            reply = self.shown_reply()
            self._step_bar.show(stepper.shown, reply.rounds[-1] if reply.rounds and reply.running else None)

    def shown_reply(self) -> Reply:
        """The reply that panel and timeline are about."""
        raise NotImplementedError

    def _follow_lanes(self) -> None:
        """The lane of the reply that is shown, and of all that have run beside it."""
        shown = self.shown_reply()
        if shown not in self._lanes:
            own = [turn.reply for turn in self.conversation.turns if turn.reply is not None]
            self._lanes = [reply for reply in own if reply is shown or ran_together(reply, shown)] or [shown]
        running = [turn.reply for _, turn in self.app.exchange.replies.values() if turn.reply is not None]
        beside = [reply for reply in running if reply not in self._lanes] if shown in running else []
        self._lanes += beside
        self._timeline.show(self._lanes)

    # What the user does

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Replay keys work in a replay."""
        if action in ("scrub", "step_back", "to_rejection"):
            return self._player is not None
        if action in ("hold", "step"):
            return self.app.stepper is not None
        return super().check_action(action, parameters)

    def on_token_cursor_looked(self, event: TokenCursor.Looked) -> None:
        """A token was clicked on, or moved to."""
        if not self.has_class("-inspect"):
            self._open_inspector()
        self.look_at(event.spot)

    def on_timeline_picked(self, event: Timeline.Picked) -> None:
        """A round was picked: its first token stands for it."""
        reply, index = event.reply, event.index
        last = reply.starts[index + 1] if index + 1 < len(reply.starts) else reply.tokens
        if reply.starts[index] < last:
            self.look_at(Spot(reply, reply.starts[index]))

    def on_replay_bar_sought(self, event: ReplayBar.Sought) -> None:
        """A click on the line of the replay."""
        self.seek(event.position)

    def action_inspect(self) -> None:
        """Look at tokens, from the last one on; again: stop."""
        if self.has_class("-inspect"):
            self.stop_looking()
            self.leave_views()
            return
        self._open_inspector()
        self.look_at(self._spot or self._transcript.last_spot())

    def action_timeline(self) -> None:
        """Go to the timeline; from there, fold it; and back."""
        if self.has_class("-narrow"):
            self.show_pane("chat" if self.has_class("-pane-rounds") else "rounds")
        elif self.has_class("-no-timeline") or not self._timeline.display:
            self.remove_class("-no-timeline")
            self.add_class("-with-timeline")
            self._timeline.focus()
        elif not self._timeline.has_focus:
            self._timeline.focus()
        else:
            self.add_class("-no-timeline")
            self.remove_class("-with-timeline")
            self.leave_views()

    def action_by_round(self) -> None:
        """One round per line, as Figure 1 of the paper; or running text."""
        self.toggle_class("-by-round")
        self._transcript.markdown = False
        self._transcript.by_round = self.has_class("-by-round")

    def action_hold(self) -> None:
        """Pause between rounds, or go on."""
        stepper = self.app.stepper
        if stepper is not None:
            if stepper.paused:
                stepper.resume()
            else:
                stepper.pause()
            self.app.pump()

    def action_step(self) -> None:
        """The next part of a round; pauses first."""
        stepper = self.app.stepper
        if stepper is not None:
            if not self.has_class("-inspect"):
                self.look_at(None)
            if stepper.paused:
                stepper.step()
            else:
                stepper.pause()
            self.app.pump()

    def action_scrub(self, steps: int) -> None:
        """Back or forth through the trace."""
        if self._player is not None:
            self.seek(self._player.position + steps * SCRUB_S)

    def action_step_back(self) -> None:
        """To before the round that was shown last."""
        if self._player is not None:
            self._stand_still()
            self._moved(back=self._player.back())

    def action_to_rejection(self) -> None:
        """To the next round with a rejection, and look at what was rejected."""
        if self._player is None:
            return
        self._stand_still()
        if not self._player.to_rejection():
            self.notify("no rejection follows in this trace")
            return
        self._moved(back=False)
        self.look_at(_last_rejection([t.reply for t in self.conversation.turns if t.reply and t.reply.rounds]))

    def seek(self, position: float) -> None:
        """Go to a time of the trace."""
        if self._player is not None:
            self._moved(back=self._player.seek(position))

    def replay_again(self) -> None:
        """Play the trace from its start."""
        if self._player is not None:
            if self.app.stepper is not None:
                self.app.stepper.resume()
            self._player.restart()
            self._moved(back=True)

    def show_pane(self, pane: str) -> None:
        """On a narrow screen: show this one."""
        raise NotImplementedError

    def leave_views(self) -> None:
        """The keyboard goes back to where one writes."""
        raise NotImplementedError

    def forget(self) -> None:
        """Another conversation is shown: what was looked at is not."""
        self._lanes = []
        self.look_at(None)

    def _open_inspector(self) -> None:
        self.add_class("-inspect")
        self._transcript.markdown = False
        if self.has_class("-narrow") and not self.has_class("-pane-rounds"):
            self.show_pane("chat")
        self._transcript.focus()
        self.app.exchange.look(DETAIL)

    def _stand_still(self) -> None:
        stepper = self.app.stepper
        if stepper is not None and not stepper.paused:
            stepper.pause()

    def _moved(self, *, back: bool) -> None:
        """The player stands elsewhere; after a step back everything up to there is given again."""
        if self.app.stepper is not None:
            self.app.stepper.jump(back=back)
        if back:
            self.app.exchange.rewind()
            self.conversation = Conversation()
            self._transcript.show(self.conversation)
            self.forget()
        self.app.pump()


def _last_rejection(replies: list[Reply]) -> Spot | None:
    """The token that was rejected last, in the last round of one of the replies."""
    ended = [reply for reply in replies if reply.rounds[-1].accepted < reply.rounds[-1].tested]
    reply = max(ended, key=lambda reply: reply.rounds[-1].at, default=None)
    if reply is None:
        return None
    return Spot(reply, reply.starts[-1] + reply.rounds[-1].accepted)
