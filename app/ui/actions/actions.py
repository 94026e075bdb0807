"""All actions of the app: looks them up in the table, runs them, and lists them in the command palette."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path

from textual.app import SystemCommand
from textual.screen import Screen

from specchat.app.chat.archive import Archive
from specchat.app.chat.exchange import FORMATS
from specchat.app.chat.past_replies import PastReplies
from specchat.app.chat.request_manager import Session
from specchat.app.settings.controls import CONTROLS
from specchat.app.settings.named_files import Preferences
from specchat.app.settings.settings import AUTO, TABLE
from specchat.app.storage.attachments import Attachment
from specchat.app.ui import slash
from specchat.app.ui.action_table import ACTIONS, ANYWHERE, CHAT, COPIES, REPLAY, Action
from specchat.app.ui.actions.chats import ChatActions
from specchat.app.ui.actions.learning import WORDS, LearnActions
from specchat.app.ui.actions.messages import CandidateActions, MessageActions
from specchat.app.ui.actions.models import Downloads, EngineRecords, ModelActions
from specchat.app.ui.actions.prompt import PromptActions
from specchat.app.ui.actions.replies import ReplyActions
from specchat.app.ui.actions.scope import NOT_LOADED, ActionScope
from specchat.app.ui.actions.settings import SettingsActions
from specchat.app.ui.actions.tools import ToolActions
from specchat.app.ui.actions.views import ComparisonActions, Views
from specchat.app.ui.keys import key_names
from specchat.app.ui.screens.chat import ChatScreen
from specchat.app.ui.screens.side_by_side import SideScreen
from specchat.engine import WHEN_FULL


@dataclass
class Actions(ActionScope):
    """The objects that the paths in the table of actions begin with."""

    def __post_init__(self) -> None:
        self.controls = SettingsActions(self)
        self.records = EngineRecords(self, self.controls)
        self.models = ModelActions(self, self.controls, self.records, Downloads(self))
        self.learn = LearnActions(self)
        self.tools = ToolActions(self)
        self.chats = ChatActions(self, self.models, self.learn, self.tools)
        self.messages = MessageActions(self, self.chats, self.tools)
        self.candidates = CandidateActions(self, self.controls, self.messages)
        self.replies = ReplyActions(self)
        self.prompt = PromptActions(self, self.controls)
        self.comparison = ComparisonActions(self, self.chats)
        self.views = Views(self, self.controls)
        self._past: PastReplies | None = None
        self.screen.widgets.composer.words = self._words()

    def connect(self, session: Session) -> None:
        """Use the session's store, settings and engine."""
        if session.store is not None:
            self._past = PastReplies(session.store)
            self._past.refresh()
            self.learn.learning.tidy()
            self.archive = Archive(session.store, self._store_failed, self._past)
        if session.settings_file is not None:
            self.preferences = Preferences(session.settings_file, self._store_failed, profiled=not session.attached)
        self.models.source = session.source
        if session.settings is not None:
            self.loaded = replace(NOT_LOADED, target=Path(session.settings.target).name)
            self.controls.show(session.settings)

    def draft_from_chats(self) -> None:
        """Let the engine, which is ready, also draft from replies of other chats."""
        if self._past is not None and self.models.source is not None:
            self._past.use(self.models.source, self.requests.model)

    def available(self, name: str) -> bool:
        """Whether an action can be used now; its keys are hidden otherwise."""
        action = ACTIONS[name]
        place = REPLAY if self.replaying else CHAT
        return action.place in (ANYWHERE, place) and (not action.when or bool(attrgetter(action.when)(self)))

    def press(self, name: str) -> None:
        """Run an action whose key was pressed. Actions of the chat do nothing while another screen covers it."""
        action = ACTIONS[name]
        if action.place == ANYWHERE or self.app.screen is self.screen:
            self.run(action)

    def run(self, action: Action, argument: str = "") -> bool:
        """Run an action; returns whether it succeeded, otherwise a notice says why not."""
        method = attrgetter(action.run)(self)
        with self.reporting():
            return method(*action.args, *([argument] if action.takes else [])) is not False
        return False

    def enter(self, text: str, attachments: tuple[Attachment, ...]) -> None:
        """Send a prompt, or run a slash command; the command returns to the composer if it fails."""
        if not slash.is_command(text):
            self.messages.send(text, attachments)
            return
        word, done = slash.first_word(text), False
        with self.reporting():
            if word in self.loaded.template_words and word[1:] not in slash.BY_NAME:  # the model's template has it
                self.messages.send(text, self.screen.widgets.composer.tray.resolved(text))
                done = True
            else:
                done = self.run(*slash.parse(text))
        if not done:
            self.screen.widgets.composer.take_back([text])

    def palette(self, screen: Screen[object]) -> Iterator[SystemCommand]:
        """Entries of the command palette on this screen: in the chat, all actions that have a description."""
        listed = [ACTIONS[name] for name in ("save-the-screen", "theme", "quit")]
        if isinstance(screen, SideScreen):
            yield from screen.commands()
        elif isinstance(screen, ChatScreen):
            listed = [action for action in ACTIONS.values() if action.about and self.available(action.name)]
        for action in listed:
            about = action.about[0].upper() + action.about[1:]
            if action.keys or action.priority:
                about = f"{about} · {key_names(self.app, f'chat.{action.name}', 1)}"
            if action.each:
                for word in self._words()[action.command]() or [""]:
                    yield SystemCommand(f"{action.title} {word}".strip(), about, partial(self.run, action, word))
            elif action.slash and not action.title:
                if not self.replaying:  # which has no composer
                    yield SystemCommand(action.slash, about, partial(self._write, action))
            else:
                yield SystemCommand(action.title or action.name.capitalize(), about, partial(self.run, action))

    def _write(self, action: Action) -> None:
        """Put a slash command into the composer, before the text there, or run it if it takes no argument."""
        if action.takes:
            self.screen.put(f"/{action.command} {self.screen.typed}")
            self.screen.panes.show("chat")
        else:
            self.run(action)

    def _words(self) -> slash.Words:
        """Possible arguments of the slash commands that take a word."""
        return {
            **{c.command: partial(list, [word for _, word in c.words] or TABLE[c.name].choices) for c in CONTROLS},
            "gamma": lambda: (AUTO, *map(str, range(17))), "drafter": lambda: (AUTO, *self.loaded.drafters),
            "context": lambda: WHEN_FULL, "preset": lambda: self.controls.presets,
            "theme": lambda: sorted(self.app.available_themes), "copy": lambda: COPIES, "export": lambda: FORMATS,
            "thinking": lambda: self.thinking_values, "drafts": self.comparison.pairs, "system": self.prompt.systems,
            "template": self.prompt.templates, "learn": lambda: WORDS, "mcp": self.tools.names,
        }  # fmt: skip

    def _store_failed(self, sentence: str) -> None:
        """Say that the chat is not stored; it continues. Called in the writing thread."""
        self.say(sentence, "error")
