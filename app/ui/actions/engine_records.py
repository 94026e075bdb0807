"""Taking in what the engine says as a whole: loading, readiness, notices, its end, and recorded requests."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import App

from specchat.app.chat.request_manager import RequestManager
from specchat.app.sources.probe import Probe
from specchat.app.ui.actions.engine_offer import EngineOffer
from specchat.app.ui.actions.settings import SettingsActions
from specchat.app.ui.notices import say
from specchat.app.ui.screens.chat import ChatScreen
from specchat.engine import Counted, Died, Loading, Notice, Ready, Record, Request


class EngineRecords:
    """What the app does when the engine says something that belongs to no reply.

    Args:
        app: Shows notices.
        screen: Shows how far loading is, and what was loaded.
        requests: Sends what has been waiting, once the engine is ready.
        settings: Shows what drafts.
        offer: Filled in with what was loaded.
        suit: Called with the engine's device.
        probe: Told which GPU to look at; None where nothing is measured.
    """

    def __init__(
        self,
        app: App[None],
        screen: ChatScreen,
        requests: RequestManager,
        settings: SettingsActions,
        offer: EngineOffer,
        suit: Callable[[str], None],
        probe: Probe | None,
    ) -> None:
        self._app = app
        self._screen = screen
        self._requests = requests
        self._settings = settings
        self._offer = offer
        self._suit = suit
        self._probe = probe

    def handle(self, record: Record) -> None:
        """Take in one record."""
        match record:
            case Loading():
                self._screen.status.show_loading(record)
            case Ready():
                self._become_ready(record)
            case Counted():
                self._screen.writing.gauge.take(record)
            case Notice():
                say(self._app, record.text)
            case Died():
                self.fail(record.message)
            case Request():
                self._settings.show_drafting(record.drafter, record.gamma, lossless=record.sampling.lossless)
                self._requests.follow(self._screen.conversation, record)

    def fail(self, sentence: str) -> None:
        """There is no engine, for this reason: say so, and answer every prompt with it."""
        self._screen.status.show_loading(sentence, failed=True)
        if self._screen.conversation.turns:  # else the whole screen says it
            say(self._app, sentence, "error")
        self._requests.fail(sentence)

    def _become_ready(self, ready: Ready) -> None:
        self._offer.update(ready)
        self._suit(ready.device)
        self._settings.show_drafting()
        self._screen.status.show_ready(ready)
        if self._probe is not None and ready.device == "cuda":
            self._probe.find_gpu(ready.device_name)
        self._requests.ready(ready.target)
        self._screen.writing.gauge.begin(ready.context)
