"""What all actions share: the app, the chat screen, requests and the archive; notices, dialogs and workers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from textual.app import App
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.worker import WorkType

from specchat.app.chat.archive import Archive
from specchat.app.chat.conversation import Conversation
from specchat.app.chat.request_manager import RequestManager
from specchat.app.errors import AppError
from specchat.app.settings.settings import Settings
from specchat.app.ui.notices import STILL_STARTING, say
from specchat.app.ui.screens.chat import ChatScreen
from specchat.app.ui.screens.dialogs import ChoiceScreen
from specchat.engine import EngineError, Ready


class UnavailableError(AppError):
    """An action is not possible at the moment; shown as a warning, not as an error."""


@dataclass
class LoadedModels:
    """Properties of the loaded engine."""

    target: str = ""
    drafters: tuple[str, ...] = ()
    """Drafters of the loaded models, the best one first; empty until they are loaded."""
    slots: int = 4
    """Maximum number of concurrent replies."""
    thinking_switch: bool = False
    """Whether the model's chat template can switch thinking on and off."""
    template_words: tuple[str, ...] = ()
    """Words with a slash that the chat template looks for in a conversation."""
    weight_bytes: int = 0

    def clear(self, target: str) -> None:
        """Forget the models; this target is to be loaded."""
        self.target, self.drafters, self.weight_bytes = target, (), 0
        self.thinking_switch, self.template_words = False, ()

    def update(self, ready: Ready) -> None:
        """Take over the properties of the engine that became ready."""
        self.thinking_switch, self.template_words = ready.thinking_switch, ready.template_words
        self.weight_bytes = ready.weight_bytes
        self.target, self.drafters = ready.target, ready.drafters
        self.slots = ready.slots or self.slots  # another server may not say


@dataclass
class ActionScope:
    """The app and the parts of it that actions read and change; one for all of them."""

    app: App[None]
    screen: ChatScreen
    """The chat; it stays below all other screens."""
    requests: RequestManager
    models: LoadedModels = field(default_factory=LoadedModels)
    archive: Archive | None = None
    """None if nothing is stored."""

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

    def say(self, sentence: str, severity: SeverityLevel = "information") -> None:
        """Show a notice."""
        say(self.app, sentence, severity)

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
        chosen: int | None = await self.ask(ChoiceScreen(title, options, sentence))
        return chosen

    def start(self, work: Callable[[], Coroutine[None, None, None]], group: str) -> None:
        """Run a coroutine function in the background; it replaces one that is running in the same group."""

        async def reported() -> None:
            with self.reporting():
                await work()

        typed: WorkType[None] = reported
        self.app.run_worker(typed, group=group, exclusive=True, exit_on_error=False)


class _Scoped(Protocol):
    @property
    def _scope(self) -> ActionScope: ...


_Self = TypeVar("_Self", bound=_Scoped)
_Given = ParamSpec("_Given")
_Method = Callable[Concatenate[_Self, _Given], Coroutine[None, None, None]]


def in_background(group: str) -> Callable[[_Method[_Self, _Given]], Callable[Concatenate[_Self, _Given], None]]:
    """Decorator: a call of the method starts it as a worker of this group and returns at once."""

    def decorate(method: _Method[_Self, _Given]) -> Callable[Concatenate[_Self, _Given], None]:
        def start(self: _Self, /, *args: _Given.args, **kwargs: _Given.kwargs) -> None:
            self._scope.start(partial(method, self, *args, **kwargs), group)

        start.__doc__ = method.__doc__
        return start

    return decorate
