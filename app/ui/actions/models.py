"""Choosing target and draft while the app runs: what there is, fetching, loading, unloading."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from specchat.app.chat.conversation import Conversation
from specchat.app.errors import AppError
from specchat.app.settings.settings import AUTO, Settings
from specchat.app.sources.pull import Pull
from specchat.app.sources.source import NOTHING, NoSource, Source
from specchat.app.ui.actions.scope import ActionScope
from specchat.app.ui.actions.settings import SettingsActions
from specchat.app.ui.background import run_in_background
from specchat.app.ui.notices import STILL_STARTING, say
from specchat.app.ui.screens.models import ModelsScreen
from specchat.engine import EngineError, Loading, models_folder
from specchat.engine.models import KnownModel, ModelStore, known_models, vocabulary_misfit

MakeSource = Callable[[Settings], Source]
NO_DRAFT = "none"
OF_ANY_MODEL = (AUTO, "none", "ngram", "suffix")
"""Drafters that every target has."""


class ModelActions:
    """What the app does with models.

    Args:
        scope: What it acts on.
        settings: Stores what was chosen.
        make: Makes an engine for settings; None where models cannot be chosen.
    """

    def __init__(self, scope: ActionScope, settings: SettingsActions, make: MakeSource | None) -> None:
        self._scope = scope
        self.use: Callable[[Source], Source] = lambda source: source
        """Puts a source behind the one that can be stepped through, once the session is there."""
        self.pulls: dict[str, Pull] = {}
        """Downloads of this run, by model."""
        self.source: Source | None = None
        """What is asked now."""
        self._settings = settings
        self._make = make
        self._unloaded = False
        self._switching = False

    @property
    def chosen(self) -> tuple[str, str]:
        """Target and draft as the settings name them."""
        settings = self._scope.requests.settings
        return (settings.target, settings.draft) if settings is not None else ("", "")

    @property
    def drafts(self) -> tuple[str, ...]:
        """The drafts that the settings name, one by one."""
        settings = self._scope.requests.settings
        return settings.engine_config(models_folder()).drafts if settings is not None else ()

    @property
    def loaded_bytes(self) -> int:
        """Memory that loading another model frees."""
        return 0 if self._unloaded else self._scope.offer.weight_bytes

    def show(self) -> None:
        """Show the models there are."""
        if self._make is None:
            say(self._scope.app, "the models are chosen where the engine runs: not here", "warning")
        elif self._scope.requests.settings is None:
            say(self._scope.app, STILL_STARTING, "warning")
        else:
            self._scope.app.push_screen(ModelsScreen(self))

    def command(self, argument: str) -> bool:
        """`/model` shows them, `/model TARGET` and `/model TARGET DRAFT` load; whether it was understood."""
        if not argument:
            self.show()
            return True
        if Path(argument).expanduser().exists():  # a path may have spaces in it
            return self.load(argument)
        target, _, draft = argument.partition(" ")
        return self.load(target, draft.strip() or None)

    def command_draft(self, argument: str) -> bool:
        """`/draft NAME`, or none; whether it was understood."""
        return self.load(self.chosen[0], argument)

    async def known(self) -> list[KnownModel]:
        """The models there are."""
        used = [self.chosen[0], *self.drafts]
        if self._scope.archive is not None:
            answered = await asyncio.wrap_future(self._scope.archive.models())
            used += answered or []
        return await asyncio.to_thread(known_models, ModelStore(models_folder()), [name for name in used if name])

    async def misfit(self, target: KnownModel, draft: KnownModel) -> str:
        """Why one cannot draft for the other; empty if it can, or if that is not known yet."""
        if target.folder is None or draft.folder is None:
            return ""
        return await asyncio.to_thread(vocabulary_misfit, target.folder, draft.folder)

    def load(self, target: str, draft: str | None = None) -> bool:
        """Load a target; a draft that is None stays if it can, and `none` is none. Whether that can be begun."""
        settings = self._free_settings()
        if settings is None:
            return False
        if draft is None:
            draft = settings.draft if target == settings.target else ""
        draft = "" if draft == NO_DRAFT else draft
        drafter = settings.drafter if settings.drafter in OF_ANY_MODEL else AUTO
        try:
            wanted = replace(settings, target=target, draft=draft, drafter=drafter)
        except AppError as error:
            say(self._scope.app, str(error), "error")
            return False
        run_in_background(self._scope.app, partial(self._switch, self._leave(wanted), wanted), "models")
        return True

    def unload(self) -> None:
        """Free the memory; the next prompt loads the same models again."""
        settings = self._free_settings()
        if settings is not None and not self._unloaded:
            run_in_background(self._scope.app, partial(self._unload, self._leave(settings), settings), "models")

    def pull(self, name: str) -> None:
        """Fetch a model, go on with it, or pause."""
        pull = self.pulls.setdefault(name, Pull(name))
        if pull.running:
            pull.pause()
        else:
            pull.start()

    def close(self) -> None:
        """Pause every download."""
        for pull in self.pulls.values():
            pull.pause()

    def update(self) -> None:
        """A prompt that waits while nothing is loaded has the models loaded again."""
        if self._unloaded and not self._switching and self._scope.requests.waiting:
            self.load(*self.chosen)

    def tell_of(self, conversation: Conversation) -> None:
        """Say it where a chat that is opened was answered by another model than that which is loaded."""
        models = [turn.reply.model for turn in conversation.turns if turn.reply is not None and turn.reply.model]
        target = self.chosen[0]
        if self._make is None or not models or models[-1] == target:
            return
        before, now = (Path(name).name for name in (models[-1], target))
        gone = Path(models[-1]).is_absolute() and not Path(models[-1]).exists()
        remedy = "which is not there any more" if gone else f"/model {models[-1]} loads it"
        sentence = f"the last reply came from {before}, {remedy}; {now} answers now"
        say(self._scope.app, sentence, "warning" if gone else "information")

    def _free_settings(self) -> Settings | None:
        """The settings, if the models can be changed now; else it is said why they cannot."""
        settings = self._scope.requests.settings
        if self._make is None or settings is None or self.source is None:
            say(
                self._scope.app,
                STILL_STARTING if self._make else "the models are chosen where the engine runs",
                "warning",
            )
            return None
        if self._scope.requests.replies:
            say(
                self._scope.app, "a reply is being written: let it end or stop it (esc), then choose a model", "warning"
            )
            return None
        return None if self._switching else settings

    async def _switch(self, before: Source | None, settings: Settings) -> None:
        assert self._make is not None
        await _closed(before)
        try:
            source = self._make(settings)
        except EngineError as error:
            self._switching = False
            self._scope.screen.status.show_loading(str(error), failed=True)
            self._scope.requests.fail(str(error))
            return
        self.source, self._unloaded, self._switching = source, False, False
        self._scope.requests.switch(self.use(source), settings)
        source.start()
        if self._settings.preferences is not None:
            self._settings.preferences.remember(settings, ["target", "draft", "drafter"])

    async def _unload(self, before: Source | None, settings: Settings) -> None:
        await _closed(before)
        self._unloaded, self._switching = True, False
        self.source = NoSource()
        self._scope.requests.switch(self.use(self.source), settings)
        self._scope.screen.status.show_loading(NOTHING)
        say(self._scope.app, f"unloaded · the next prompt loads {Path(settings.target).name} again")

    def _leave(self, settings: Settings) -> Source | None:
        """Ask the engine there is no more; it is still to be closed."""
        before, self._switching = self.source, True
        self._scope.requests.switch(None, settings)
        self._scope.offer.clear(Path(settings.target).name)
        self._settings.show(settings)
        self._scope.screen.status.show_loading(Loading("close", "closing the engine", None, 0.0))
        return before


async def _closed(source: Source | None) -> None:
    """Close an engine, which frees its memory."""
    if source is not None:
        await asyncio.to_thread(source.close)
