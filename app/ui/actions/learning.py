"""The action on learning from the chats: `/learn`."""

from dataclasses import dataclass, field

from specchat.app.chat.archive import NoArchive
from specchat.app.chat.learning import MINUTES, Learning
from specchat.app.errors import UsageError
from specchat.app.ui.actions.scope import ActionGroup, UnavailableError, in_background

WORDS = ("stop", "undo")
_LOOK_S = 0.2
"""Interval of looking whether the engine works."""
NOT_HERE = "chats are not stored here, or the engine runs elsewhere: there is nothing to learn from"


@dataclass(eq=False)
class LearnActions(ActionGroup):
    """Starts, watches and undoes learning. Nothing is learnt without the command."""

    learning: Learning = field(default_factory=Learning)
    """The process."""
    _watched = False

    def command(self, argument: str = "") -> None:
        """`/learn` asks and starts, or says how far it is; `/learn stop`; `/learn undo`."""
        if argument not in ("", *WORDS):
            raise UsageError(f"/learn takes {' or '.join(WORDS)}, or nothing")
        if isinstance(self._scope.archive, NoArchive) or self._scope.requests.session.attached:
            raise UnavailableError(NOT_HERE)
        target = self._scope.settings.target
        if argument == "undo":
            undone = self.learning.undo(target)
            before = "the head before it is used when the model is loaded next (/unload)"
            self._scope.say(before if undone else f"nothing has been learnt for {target}")
        elif argument == "stop":
            self._scope.say("learning stopped, its text is deleted" if self.learning.running else "nothing is learning")
            self.learning.stop()
        elif self.learning.running:
            self._scope.say(self.learning.state)
        else:
            self._start(target)

    @in_background("asking")
    async def _start(self, target: str) -> None:
        options = [("learn", f"{MINUTES:g} minutes, while nothing else runs; /learn undo returns"), ("cancel", "")]
        if await self._scope.choose("train the draft head on your chats?", options) != 0 or self.learning.running:
            return
        self.learning.start(target)
        self._scope.say(f"learning from your chats for {MINUTES:g} minutes, while nothing else runs · /learn stop")
        if not self._watched:
            self._watched = True
            self._scope.app.set_interval(_LOOK_S, self.update)

    def update(self) -> None:
        """Pause while a reply is written, and say what was learnt."""
        requests = self._scope.requests
        if sentence := self.learning.update(bool(requests.replies or requests.waiting)):
            self._scope.say(sentence)

    def forget(self) -> None:
        """A chat has been deleted: stop, which deletes the text of it that is being learnt from."""
        if self.learning.running:
            self.learning.stop()
            self._scope.say("learning stopped, because a chat was deleted and its text with it", "warning")
