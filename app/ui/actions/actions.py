"""Everything the app can do, put together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from textual.app import App

from specchat.app.chat.archive import Archive
from specchat.app.chat.conversation import Conversation
from specchat.app.chat.past_replies import PastReplies
from specchat.app.chat.request_manager import RequestManager
from specchat.app.chat.session import Session
from specchat.app.settings.preferences import Preferences
from specchat.app.ui.actions.alignment import AlignmentActions
from specchat.app.ui.actions.attachments import AttachmentActions
from specchat.app.ui.actions.candidates import CandidateActions
from specchat.app.ui.actions.chats import ChatActions
from specchat.app.ui.actions.clipboard import Clipboard
from specchat.app.ui.actions.editor import EditorActions
from specchat.app.ui.actions.engine_offer import EngineOffer
from specchat.app.ui.actions.file_export import FileExport
from specchat.app.ui.actions.models import MakeSource, ModelActions
from specchat.app.ui.actions.palette_commands import PaletteCommands
from specchat.app.ui.actions.reading import ReadingActions
from specchat.app.ui.actions.scope import ActionScope
from specchat.app.ui.actions.search import SearchActions
from specchat.app.ui.actions.settings import SettingsActions
from specchat.app.ui.actions.side_by_side import MakeDuet, SideBySide
from specchat.app.ui.actions.slash_commands import SlashCommands
from specchat.app.ui.actions.texts import OFF, TextActions
from specchat.app.ui.actions.tree import TreeActions
from specchat.app.ui.actions.views import Views, understood
from specchat.app.ui.notices import say
from specchat.app.ui.screens.chat import ChatScreen
from specchat.app.ui.screens.messages import MessageAction


class Actions:
    """The objects that act for the app, each on its part of the program.

    Args:
        app: Shows screens and notices, and runs the workers.
        screen: Shows the conversation.
        requests: Sends prompts and stops replies.
        now: The time of day, for the ages of chats.
        pictures: The folder that pictures and exported chats go to; specchat's own by default.
        make_duet: Makes the lanes of the side-by-side mode; without it there is none.
        make_source: Makes an engine for settings; without it the models stay.
        replaying: Whether the app shows a replay.
    """

    def __init__(
        self,
        app: App[None],
        screen: ChatScreen,
        requests: RequestManager,
        now: Callable[[], float],
        pictures: Path | None,
        make_duet: MakeDuet | None,
        make_source: MakeSource | None,
        *,
        replaying: bool,
    ) -> None:
        self._past: PastReplies | None = None
        self.scope = scope = ActionScope(app, screen, requests, EngineOffer())
        self.chats = ChatActions(scope, now, lambda chat: self.models.tell_of(chat))
        self.clipboard = Clipboard(scope)
        self.export = FileExport(scope, pictures)
        self.settings = SettingsActions(scope)
        self.candidates = CandidateActions(scope, self.settings)
        self.tree = TreeActions(scope, self.chats.open)
        self.search = SearchActions(scope, self.chats)
        self.texts = TextActions(scope, self.settings)
        self.reading = ReadingActions(scope)
        self.models = ModelActions(scope, self.settings, make_source)
        self.attachments = AttachmentActions(scope, self.settings)
        self.editor = EditorActions(scope)
        self.alignment = AlignmentActions(scope)
        self.side = SideBySide(scope, make_duet, self._return)
        self.views = Views(
            scope,
            self.settings,
            {
                "candidates": self.candidates.show,
                "messages": self.tree.messages,
                "search": self.search.ask,
                "attachments": self.attachments.show,
                "context": self.attachments.context,
                "editor": self.editor.edit,
                "copy": self.clipboard.ask,
                "side_by_side": self.side.open,
                "save_picture": self.export.screen,
                "links": partial(self.reading.open_link, ""),
                "models": self.models.show,
                "drafts": self.alignment.show,
            },
            replaying=replaying,
        )
        self.commands = SlashCommands(
            scope,
            self.settings,
            {
                **{
                    name: self.views.command(name)
                    for name in (
                        "controls",
                        "messages",
                        "search",
                        "theory",
                        "help",
                        "tour",
                        "attachments",
                        "context",
                        "editor",
                    )
                },
                **{
                    action: partial(self.tree.command, action)
                    for action in MessageAction
                    if action is not MessageAction.GO
                },
                "drafts": self.alignment.command,
                "model": self.models.command,
                "draft": self.models.command_draft,
                "unload": understood(self.models.unload),
                "preset": self.settings.use_preset,
                "save": self.settings.save_preset,
                "candidates": self.candidates.command,
                "copy": self.clipboard.copy,
                "export": self.export.chat,
                "system": self.texts.system,
                "system-save": self.texts.save_system,
                "system-default": understood(self.texts.make_default),
                "template": self.texts.template,
                "template-save": self.texts.save_template,
                "attach": self.attachments.attach,
                "pin": understood(self.chats.pin_shown),
                "new": understood(screen.action_new_chat),
                "markdown": understood(screen.action_markdown),
                "open": self.reading.open_link,
                "thinking": self.reading.think,
                "thoughts": understood(screen.action_thoughts),
            },
            screen.send,
        )
        self.palette = PaletteCommands(
            app, self.views.open, self.chats, self.settings, self.export, self.tree.of_last, self.texts, self.reading
        )
        screen.writing.complete_with(
            {
                **self.commands.words,
                "drafts": lambda: self.alignment.pairs,
                "system": lambda: [OFF, *(self.texts.systems.names() if self.texts.systems else ())],
                "template": lambda: self.texts.templates.names() if self.texts.templates else [],
            }
        )

    def connect(self, session: Session) -> None:
        """Give each what it needs of the session."""
        if session.store is not None:
            self._past = PastReplies(session.store)
            self._past.refresh()
            self.scope.archive = Archive(session.store, self._store_failed, self._past)
        if session.settings_file is not None:
            self.texts.keep_in(session.settings_file.parent)
            self.settings.preferences = Preferences(session.settings_file, self._store_failed)
        self.models.source = session.source
        if session.settings is not None:
            self.scope.offer.target = Path(session.settings.target).name
            self.settings.show(session.settings)

    def draft_from_chats(self) -> None:
        """The engine is ready: let it draft from what it said in other chats, too."""
        if self._past is not None and self.models.source is not None:
            self._past.use(self.models.source, self.scope.requests.model)

    def _store_failed(self, sentence: str) -> None:
        """The chat goes on; the user knows that it is not kept. Called in the writing thread."""
        say(self.scope.app, sentence, "error")

    def _return(self, conversation: Conversation | None) -> None:
        """From the side-by-side mode, with the lane to continue if there is one."""
        if conversation is not None:
            self.scope.screen.show(conversation)
        self.chats.list()
