"""Records of the engine that belong to no reply: what becomes of its models, and what it tells about itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specchat import engine
from specchat.app.settings.settings import NO_CHAT, Settings
from specchat.app.ui.actions.scope import ActionGroup
from specchat.app.ui.actions.settings import SettingsActions
from specchat.app.ui.screens.cache import CacheScreen


@dataclass(eq=False)
class EngineRecords(ActionGroup):
    """Shows what the engine tells about itself."""

    _controls: SettingsActions
    chosen: Settings | None = None
    """Settings whose models are being loaded; they are stored once the models are ready."""

    def handle(self, record: engine.Record) -> None:
        """Process one record."""
        match record:
            case engine.Loading():
                self._scope.screen.widgets.show_loading(record)
            case engine.Ready(conversations=False):
                self.fail(NO_CHAT.format(record.target))
            case engine.Ready():
                self._become_ready(record)
            case engine.Captured():
                self._scope.screen.widgets.panel.show_captured(record)
            case engine.CacheUse():
                if isinstance(screen := self._scope.app.screen, CacheScreen):
                    screen.call_later(screen.take, record)  # once it is mounted
            case engine.Counted():
                self._scope.screen.writing.gauge.take(record)
            case engine.Notice():
                self._scope.say(record.text)
            case engine.Died():
                self.fail(record.message)
            case engine.Request():
                self._controls.show_drafting(record.drafter, record.gamma, record.sampling)
                self._scope.requests.running.follow(self._scope.conversation, record)

    def fail(self, sentence: str) -> None:
        """There is no engine, for this reason: show it, and answer every prompt with it."""
        if self._scope.make_source is not None and self._scope.requests.settings is not None:
            sentence = f"{sentence} · ctrl+\\ chooses another model"
        self._scope.screen.widgets.show_loading(sentence, failed=True)
        if self._scope.conversation.prompts:  # otherwise the welcome screen shows it
            self._scope.say(sentence, "error")
        self._scope.requests.fail(sentence)

    def _become_ready(self, ready: engine.Ready) -> None:
        if self._scope.preferences is not None and self.chosen is not None:
            self._scope.preferences.remember(self.chosen, ["target", "draft", "drafter", "context"])
        self.chosen = None
        slots = ready.slots or self._scope.loaded.slots  # another server may not say
        self._scope.loaded = replace(ready, slots=slots)
        if self._scope.requests.settings is None:
            self._controls.show_drafting()
        else:
            self._controls.show(self._scope.requests.settings)
        self._scope.requests.ready(ready.target, ready.sampling)
        self._scope.screen.widgets.show_machine(ready, self._scope.requests.model)
        self._scope.screen.widgets.show_loading("" if self._scope.replaying else "ready: ask anything")
        self._scope.screen.writing.gauge.begin(ready.context)
        wanted = self._scope.requests.settings
        if wanted is not None and (notice := wanted.context_notice(ready)):
            self._scope.say(notice, "warning")
