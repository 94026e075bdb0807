"""Actions on models: list, load, unload."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

from specchat import engine
from specchat.app.chat.conversation import Conversation
from specchat.app.settings.settings import AUTO, Settings
from specchat.app.sources.source import NOTHING, NoSource, Source
from specchat.app.ui.actions.downloads import Downloads
from specchat.app.ui.actions.engine_records import EngineRecords
from specchat.app.ui.actions.scope import NOT_LOADED, ActionGroup, UnavailableError, in_background
from specchat.app.ui.actions.settings import SettingsActions
from specchat.app.ui.notices import STILL_STARTING
from specchat.app.ui.screens.models import ModelsScreen
from specchat.engine.models import KnownModel, ModelStore, known_models

FIXED = "the models are chosen where the engine runs: not here"
NO_DRAFT = "none"
NOT_HERE = "{} is not on this machine: /model {} downloads it, ctrl+\\ lists others"
OF_ANY_MODEL = {AUTO, *(name for name, entry in engine.DRAFTERS.items() if not entry.condition.needs)}
"""Drafters that every target has."""


@dataclass(eq=False)
class ModelActions(ActionGroup):
    """Lists, loads and unloads models."""

    _controls: SettingsActions
    _records: EngineRecords
    downloads: Downloads
    source: Source | None = None
    """The present engine."""
    _unloaded = False
    _switching = False

    def __post_init__(self) -> None:
        self._controls.reload = self.reload

    @property
    def chosen(self) -> tuple[str, str]:
        """Target and draft as the settings name them."""
        settings = self._scope.requests.settings
        return (settings.target, settings.draft) if settings is not None else ("", "")

    @property
    def drafts(self) -> tuple[str, ...]:
        """The draft models that the settings name."""
        settings = self._scope.requests.settings
        return settings.engine_config(engine.models_folder()).drafts if settings is not None else ()

    def command(self, argument: str = "") -> bool:
        """`/model` lists the models, `/model TARGET` and `/model TARGET DRAFT` load them."""
        if argument:
            is_path = engine.local_path(argument) is not None  # a path may contain spaces
            target, _, draft = (argument, "", "") if is_path else argument.partition(" ")
            return self.load(target, draft.strip() or None)
        if self._scope.make_source is None:
            raise UnavailableError(FIXED)
        if self._scope.requests.settings is None:
            raise UnavailableError(STILL_STARTING)
        self._scope.app.push_screen(ModelsScreen(self))
        return True

    def reload(self, wanted: Settings) -> None:
        """Load the same models again, with another context."""
        self._changeable_settings()
        if not self._switching:
            self._switch(self._leave(wanted), wanted)

    def load_draft(self, name: str) -> bool:
        """`/draft NAME`, or none."""
        return self.load(self.chosen[0], name)

    async def known(self) -> list[KnownModel]:
        """All models: on this machine, used before, or in the catalog."""
        answered = await asyncio.wrap_future(self._scope.archive.models())
        used = [self.chosen[0], *self.drafts, *(answered or [])]
        return await asyncio.to_thread(
            known_models, ModelStore(engine.models_folder()), [name for name in used if name]
        )

    def load(self, target: str, draft: str | None = None) -> bool:
        """Load a target, after a question if it must be downloaded; returns False if a notice says why not.

        Settings of a model are as they were last set with the target. A draft of None is the last draft of the target;
        `none` is no draft.
        """
        with self._scope.reporting():
            settings, preferences = self._changeable_settings(), self._scope.preferences
            if target != settings.target:
                drafter = settings.drafter if settings.drafter in OF_ANY_MODEL else AUTO
                own = preferences.of_target(target, settings.target) if preferences is not None else {}
                settings = replace(settings, **{"draft": "", "drafter": drafter} | own)
            draft = settings.draft if draft is None else "" if draft == NO_DRAFT else draft
            same = draft == settings.draft or settings.drafter in OF_ANY_MODEL
            drafter = settings.drafter if same else AUTO
            wanted = replace(settings, target=target, draft=draft, drafter=drafter)
            if not self._switching:
                self._switching = True
                self._load(wanted)
                return True
        return False

    def begin(self) -> None:
        """Load the models of a session that began without any, because they must be downloaded."""
        self._unloaded = self._switching = True
        self._load(self._scope.settings, unasked=True)

    @in_background("loading")
    async def _load(self, settings: Settings, *, unasked: bool = False) -> None:
        failure = NOT_HERE.format(settings.target, settings.target)
        try:
            wanted = await self.downloads.confirmed(settings.engine_config(engine.models_folder()), unasked=unasked)
        except engine.EngineError as error:
            wanted, failure = False, str(error)
            if not self._unloaded:
                self._scope.report(error)
        finally:
            self._switching = False
        if wanted:
            self._changeable_settings()  # a prompt may have been sent by then
            self._switch(self._leave(settings), settings)
        elif self._unloaded:
            self._records.fail(failure)

    def unload(self) -> None:
        """Free the memory of the models; the next prompt loads them again."""
        with self._scope.reporting():
            settings = self._changeable_settings()
            if not self._unloaded and not self._switching:
                self._unload(self._leave(settings), settings)

    def update(self) -> None:
        """Load the models again if they are unloaded and a prompt waits."""
        if self._unloaded and not self._switching and self._scope.requests.waiting:
            with self._scope.reporting():
                settings = self._changeable_settings()
                self._switching = True
                self._load(settings)

    def compare_with(self, conversation: Conversation) -> None:
        """Show a notice if the last reply of a chat came from another model than the loaded one."""
        replies = [reply for reply in conversation.replies if reply.model]
        model, target = replies[-1].model if replies else "", self.chosen[0]
        if self._scope.make_source is None or model in ("", target):
            return
        before, now = (Path(name).name for name in (model, target))
        gone = Path(model).is_absolute() and not Path(model).exists()
        remedy = f"/model {model} loads it" if replies[-1].rounds else "in another program"
        remedy = "which no longer exists" if gone else remedy
        self._scope.say(
            f"the last reply came from {before}, {remedy}; {now} answers now", "warning" if gone else "information"
        )

    def _changeable_settings(self) -> Settings:
        """The settings.

        Raises:
            UnavailableError: the models cannot be changed now.
        """
        if self._scope.make_source is None:
            raise UnavailableError(FIXED)
        if self.source is None:
            raise UnavailableError(STILL_STARTING)
        settings = self._scope.settings
        if self._scope.requests.replies:
            raise UnavailableError("a reply is being written: wait for it or stop it (esc), then choose a model")
        return settings

    @in_background("models")
    async def _switch(self, before: Source | None, settings: Settings) -> None:
        assert self._scope.make_source is not None
        await _close(before)
        try:
            source = self._scope.make_source(settings)
        except engine.EngineError as error:
            self._switching = False
            self._scope.screen.widgets.show_loading(str(error), failed=True)
            self._scope.requests.fail(str(error))
            return
        self.source, self._unloaded, self._switching = source, False, False
        self._scope.requests.switch(self._scope.screen.stepping.through(source), settings)
        self._records.chosen = settings
        source.start()

    @in_background("models")
    async def _unload(self, before: Source | None, settings: Settings) -> None:
        await _close(before)
        self._unloaded, self._switching = True, False
        self.source = NoSource()
        self._scope.requests.switch(self._scope.screen.stepping.through(self.source), settings)
        self._scope.screen.widgets.show_loading(NOTHING)
        self._scope.say(f"unloaded · the next prompt reloads {Path(settings.target).name}")

    def _leave(self, settings: Settings) -> Source | None:
        """Stop using the engine; returns it, still to be closed."""
        self._scope.requests.switch(None, settings)
        before, self._switching = self.source, True
        loaded = self._scope.loaded
        self._scope.loaded = replace(NOT_LOADED, target=Path(settings.target).name, slots=loaded.slots)
        self._controls.show(settings)
        self._scope.screen.widgets.show_machine(None)
        self._scope.screen.widgets.show_loading(engine.Loading("close", "closing the engine", None, 0.0))
        return before


async def _close(source: Source | None) -> None:
    """Close an engine, which frees its memory."""
    if source is not None:
        await asyncio.to_thread(source.close)
