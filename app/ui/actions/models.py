"""Actions on models: list, download, load, unload; and what the engine tells about them and itself."""

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path

from specchat import engine
from specchat.app.chat.conversation import Conversation
from specchat.app.settings.settings import AUTO, NO_CHAT, Settings
from specchat.app.sources.pull import Pull
from specchat.app.sources.source import NOTHING, NoSource, Source
from specchat.app.ui.actions.scope import NOT_LOADED, STILL_STARTING, ActionGroup, UnavailableError, in_background
from specchat.app.ui.actions.settings import SettingsActions
from specchat.app.ui.screens.cache import CacheScreen
from specchat.app.ui.screens.models import ModelsScreen
from specchat.engine.models import PRESETS, KnownModel, Machine, ModelStore, downloads, known_models


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


TYPED_S = 0.2
"""Between two looks whether a prompt is still being typed."""


@dataclass(eq=False)
class Downloads(ActionGroup):
    """Downloads models, and asks first whether to."""

    pulls: dict[str, Pull] = field(default_factory=dict)
    """Downloads of this run, by model."""

    async def machine(self) -> Machine:
        """What another model could use: what is free, and what the loaded one frees."""
        machine = await asyncio.to_thread(Machine.now, engine.models_folder())
        return replace(machine, memory=machine.memory + self._scope.loaded.weight_bytes)

    def pull(self, name: str) -> None:
        """Start, resume or pause the download of a model; asks before the first start."""
        pull = self.pulls.get(name)
        if pull is None:
            self._begin(name)
        elif pull.running:
            pull.pause()
        else:
            pull.start()

    @in_background("asking")
    async def _begin(self, name: str) -> None:
        if await self.confirmed(engine.EngineConfig(name, engine.models_folder())):
            self.pulls.setdefault(name, Pull(name)).start()

    async def confirmed(self, config: engine.EngineConfig, *, unasked: bool = False) -> bool:
        """Whether nothing must be downloaded, or the download is wanted.

        An unexpected question (`unasked`) waits while a prompt is typed, whose keys it would take.

        Raises:
            EngineError: a size cannot be found, or memory or disk is too small.
        """
        sizes = await asyncio.to_thread(downloads, config)
        if not sizes:
            return True
        machine, names, size = await self.machine(), " and ".join(sizes), sum(sizes.values())
        presets = [PRESETS[name] for name in sizes if name in PRESETS]
        memory = sum(preset.memory_bytes(gpu=machine.gpu) for preset in presets)
        disk = max(size, sum(preset.disk_bytes(gpu=machine.gpu) for preset in presets))
        if short := machine.shortage(memory, disk):
            raise engine.EngineError(f"{names} {short}: choose a smaller model, or make room")
        needs, free = [f"needs {engine.size_text(memory)} of memory"] * bool(memory), engine.size_text(machine.disk)
        about = [*dict.fromkeys(preset.licence for preset in presets), *needs, f"{free} of disk free"]
        options = [("download", engine.size_text(size)), ("cancel", "")]
        while unasked and self._scope.screen.typed:
            await asyncio.sleep(TYPED_S)
        return await self._scope.choose(f"download {names}?", options, " · ".join(about)) == 0

    def close(self) -> None:
        """Pause every download."""
        for pull in self.pulls.values():
            pull.pause()


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
            return self.load(target, draft.strip() or None, f"/model {argument}")
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
        return self.load(self.chosen[0], name, f"/draft {name}")

    async def known(self) -> list[KnownModel]:
        """All models: on this machine, used before, or in the catalog."""
        answered = await asyncio.wrap_future(self._scope.archive.models())
        used = [name for name in (self.chosen[0], *self.drafts, *(answered or ())) if name]
        return await asyncio.to_thread(known_models, ModelStore(engine.models_folder()), used)

    def load(self, target: str, draft: str | None = None, typed: str = "") -> bool:
        """Load a target, after a question if it must be downloaded; returns False if a notice says why not.

        Settings of a model are as they were last set with the target. A draft of None is the last draft of the target;
        `none` is no draft. If the models are refused later, `typed` returns to the composer if that is empty.
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
                self._load(wanted, typed)
                return True
        return False

    def begin(self) -> None:
        """Load the models of a session that began without any, because they must be downloaded."""
        self._unloaded = self._switching = True
        self._load(self._scope.settings, unasked=True)

    @in_background("loading")
    async def _load(self, settings: Settings, typed: str = "", *, unasked: bool = False) -> None:
        failure = NOT_HERE.format(settings.target, settings.target)
        try:
            wanted = await self.downloads.confirmed(settings.engine_config(engine.models_folder()), unasked=unasked)
        except engine.EngineError as error:
            wanted, failure = False, str(error)
            if typed and not self._scope.screen.typed:
                self._scope.screen.put(typed)
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
        told = f"the last reply came from {before}, {remedy}; {now} answers now"
        self._scope.say(told, "warning" if gone else "information")

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
    async def _switch(self, before: Source, settings: Settings) -> None:
        assert self._scope.make_source is not None
        await asyncio.to_thread(before.close)  # frees its memory
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
    async def _unload(self, before: Source, settings: Settings) -> None:
        await asyncio.to_thread(before.close)  # frees its memory
        self._unloaded, self._switching = True, False
        self.source = NoSource()
        self._scope.requests.switch(self._scope.screen.stepping.through(self.source), settings)
        self._scope.screen.widgets.show_loading(NOTHING)
        self._scope.say(f"unloaded · the next prompt reloads {Path(settings.target).name}")

    def _leave(self, settings: Settings) -> Source:
        """Stop using the engine; returns it, still to be closed."""
        self._scope.requests.switch(None, settings)
        before, self._switching = self.source, True
        assert before is not None  # as `_changeable_settings` has found
        self._scope.loaded = replace(NOT_LOADED, target=Path(settings.target).name, slots=self._scope.loaded.slots)
        self._controls.show(settings)
        self._scope.screen.widgets.show_machine(None)
        self._scope.screen.widgets.show_loading(engine.Loading("close", "closing the engine", None, 0.0))
        return before
