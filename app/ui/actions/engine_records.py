"""Taking in what the engine says as a whole: loading, readiness, notices, its end, and recorded requests."""

from __future__ import annotations

from collections.abc import Callable

from specchat.app.settings.settings import NO_CHAT
from specchat.app.sources.probe import Probe
from specchat.app.ui.actions.scope import ActionScope
from specchat.app.ui.actions.settings import SettingsActions
from specchat.app.ui.notices import say
from specchat.engine import Counted, Died, Loading, Notice, Ready, Record, Request


class EngineRecords:
    """What the app does when the engine says something that belongs to no reply.

    Args:
        scope: What it acts on.
        settings: Shows what drafts.
        on_ready: Called with the engine's device once the models are loaded.
        probe: Told which GPU to look at; None where nothing is measured.
    """

    def __init__(
        self,
        scope: ActionScope,
        settings: SettingsActions,
        on_ready: Callable[[str], None],
        probe: Probe | None,
    ) -> None:
        self._scope = scope
        self._settings = settings
        self._on_ready = on_ready
        self._probe = probe

    def handle(self, record: Record) -> None:
        """Take in one record."""
        match record:
            case Loading():
                self._scope.screen.status.show_loading(record)
            case Ready(conversations=False):
                self.fail(NO_CHAT.format(record.target))
            case Ready():
                self._become_ready(record)
            case Counted():
                self._scope.screen.writing.gauge.take(record)
            case Notice():
                say(self._scope.app, record.text)
            case Died():
                self.fail(record.message)
            case Request():
                self._settings.show_drafting(record.drafter, record.gamma, lossless=record.sampling.lossless)
                self._scope.requests.running.follow(self._scope.screen.conversation, record)

    def fail(self, sentence: str) -> None:
        """There is no engine, for this reason: say so, and answer every prompt with it."""
        self._scope.screen.status.show_loading(sentence, failed=True)
        if self._scope.screen.conversation.turns:  # else the whole screen says it
            say(self._scope.app, sentence, "error")
        self._scope.requests.fail(sentence)

    def _become_ready(self, ready: Ready) -> None:
        self._scope.offer.update(ready)
        self._on_ready(ready.device)
        self._settings.show_drafting()
        self._scope.screen.status.show_ready(ready)
        if self._probe is not None and ready.device == "cuda":
            self._probe.find_gpu(ready.device_name)
        self._scope.requests.ready(ready.target)
        self._scope.screen.writing.gauge.begin(ready.context)
