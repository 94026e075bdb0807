"""Handles records of the engine that belong to no reply: loading, readiness, notices, its end, recorded requests."""

from __future__ import annotations

from collections.abc import Callable

from specchat.app.settings.settings import NO_CHAT
from specchat.app.sources.probe import Probe
from specchat.app.ui.actions.scope import ActionScope
from specchat.app.ui.actions.settings import SettingsActions
from specchat.engine import Counted, Died, Loading, Notice, Ready, Record, Request


class EngineRecords:
    """Updates the app from the engine's own records.

    Args:
        scope: Shared by all actions.
        settings: Shows drafter and γ.
        on_ready: Called with the engine's device once the models are loaded.
        probe: Measures the load of the GPU that the engine runs on; None if nothing is measured.
    """

    def __init__(
        self, scope: ActionScope, settings: SettingsActions, on_ready: Callable[[str], None], probe: Probe | None
    ) -> None:
        self._scope = scope
        self._settings = settings
        self._on_ready = on_ready
        self._probe = probe

    def handle(self, record: Record) -> None:
        """Process one record."""
        match record:
            case Loading():
                self._scope.screen.widgets.show_loading(record)
            case Ready(conversations=False):
                self.fail(NO_CHAT.format(record.target))
            case Ready():
                self._become_ready(record)
            case Counted():
                self._scope.screen.writing.gauge.take(record)
            case Notice():
                self._scope.say(record.text)
            case Died():
                self.fail(record.message)
            case Request():
                self._settings.show_drafting(record.drafter, record.gamma, lossless=record.sampling.lossless)
                self._scope.requests.follow(self._scope.conversation, record)

    def fail(self, sentence: str) -> None:
        """There is no engine, for this reason: show it, and answer every prompt with it."""
        self._scope.screen.widgets.show_loading(sentence, failed=True)
        if self._scope.conversation.turns:  # otherwise the welcome screen shows it
            self._scope.say(sentence, "error")
        self._scope.requests.fail(sentence)

    def _become_ready(self, ready: Ready) -> None:
        self._scope.models.update(ready)
        self._on_ready(ready.device)
        self._settings.show_drafting()
        self._scope.screen.widgets.show_ready(ready)
        if self._probe is not None and ready.device == "cuda":
            self._probe.find_gpu(ready.device_name)
        self._scope.requests.ready(ready.target)
        self._scope.screen.writing.gauge.begin(ready.context)
