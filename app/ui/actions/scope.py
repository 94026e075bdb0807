"""What all actions share: the app, the chat screen, requests and the archive; notices, dialogs and workers."""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from textual.app import App
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.worker import WorkType

from specchat.app.chat.archive import Archive, NoArchive
from specchat.app.chat.conversation import Conversation
from specchat.app.chat.request_manager import RequestManager
from specchat.app.errors import AppError
from specchat.app.settings.named_files import Preferences
from specchat.app.settings.settings import AUTO, Settings
from specchat.app.side_by_side.duet import Duet
from specchat.app.sources.source import Source
from specchat.app.ui.screens.chat import ChatScreen
from specchat.app.ui.screens.dialogs import ChoiceScreen
from specchat.engine import EngineError, Ready

MakeDuet = Callable[[Settings], Duet]
MakeSource = Callable[[Settings], Source]

STILL_STARTING = "specchat is still starting: try again in a moment"


class UnavailableError(AppError):
    """An action is not possible at the moment; shown as a warning, not as an error."""


NOT_LOADED = Ready("", None, (), "", "", "", 0, slots=4, weight_bytes=0, cache_bytes=0, at=0.0)


@dataclass
class ActionScope:
    """The app and the parts of it that actions read and change; one for all of them."""

    app: App[None]
    screen: ChatScreen
    """The chat; it stays below all other screens."""
    requests: RequestManager
    now: Callable[[], float]
    """The time of day in seconds since 1970, for the ages of chats."""
    pictures: Path | None
    """The folder for pictures and exported chats; specchat's own for None."""
    make_duet: MakeDuet | None
    """Makes the lanes of the side-by-side mode; None if it is not available."""
    make_source: MakeSource | None
    """Makes an engine for settings; None if the models cannot be chosen."""
    replaying: bool
    loaded: Ready = NOT_LOADED
    """The engine that is ready; before that only the name of its target is known."""
    archive: Archive = field(default_factory=NoArchive)
    """None if nothing is stored."""
    preferences: Preferences | None = None
    """None if settings are not stored."""

    @property
    def conversation(self) -> Conversation:
        """The conversation on screen."""
        return self.screen.conversation

    @property
    def settings(self) -> Settings:
        """The settings of the next request.

        Raises:
            UnavailableError: the app is still starting.
        """
        if self.requests.settings is None:
            raise UnavailableError(STILL_STARTING)
        return self.requests.settings

    @property
    def stored(self) -> Preferences:
        """The preferences.

        Raises:
            UnavailableError: settings are not stored.
        """
        if self.preferences is None:
            raise UnavailableError("presets are not available here")
        return self.preferences

    @property
    def thinking_values(self) -> tuple[str, ...]:
        """Values of the thinking switch of the loaded model's template."""
        return (AUTO, *(self.loaded.thinking_values or ("on", "off")))

    @property
    def effective(self) -> Settings:
        """Settings of the next request, with the model's own sampling where they have none."""
        return self.settings.with_model(self.loaded.sampling)

    def say(self, sentence: str, severity: SeverityLevel = "information") -> None:
        """Show a notice."""
        self.app.notify(sentence, severity=severity)

    def report(self, error: Exception) -> None:
        """Show why an action failed."""
        self.say(str(error), "warning" if isinstance(error, UnavailableError) else "error")

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Show errors of the block as notices."""
        try:
            yield
        except (AppError, EngineError) as error:
            self.report(error)

    async def ask(self, screen: Screen[Any]) -> Any:
        """Open a dialog and wait for its result."""
        return await self.app.push_screen_wait(screen)

    async def choose(self, title: str, options: list[tuple[str, str]], sentence: str = "") -> int | None:
        """Ask for one of several options, each with a name and a description; its index, or None."""
        return await self.app.push_screen_wait(ChoiceScreen(title, options, sentence))

    async def choose_name(self, kind: str, names: Sequence[str], missing: str) -> str | None:
        """Ask for one of several names of a kind.

        Raises:
            UnavailableError: there are none; `missing` says how to make one.
        """
        if not names:
            raise UnavailableError(f"no {kind} is saved yet: {missing}")
        place = await self.choose(kind, [(name, "") for name in names])
        return None if place is None else names[place]


@dataclass(eq=False)
class ActionGroup:
    """A group of actions; subclasses add fields for other groups that they use."""

    _scope: ActionScope


_Self = TypeVar("_Self", bound=ActionGroup)
_Given = ParamSpec("_Given")
_Method = Callable[Concatenate[_Self, _Given], Coroutine[None, None, None]]


def in_background(
    group: str, *, exclusive: bool = True
) -> Callable[[_Method[_Self, _Given]], Callable[Concatenate[_Self, _Given], None]]:
    """Decorator: a call of the method starts it as a worker and returns at once.

    It replaces a worker of the same group if it is `exclusive`.
    """

    def decorate(method: _Method[_Self, _Given]) -> Callable[Concatenate[_Self, _Given], None]:
        @wraps(method)
        def start(self: _Self, /, *args: _Given.args, **kwargs: _Given.kwargs) -> None:
            async def reported() -> None:
                with self._scope.reporting():
                    await method(self, *args, **kwargs)

            typed: WorkType[None] = reported
            self._scope.app.run_worker(typed, group=group, exclusive=exclusive, exit_on_error=False)

        return start

    return decorate
