"""The app. It draws its first frame before it loads anything.

Blocking work runs in threads: preparing the session, and all access to the store (`app.chat.archive`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from textual import work
from textual.app import App, SystemCommand
from textual.binding import Binding
from textual.driver import Driver
from textual.events import Event as TextualEvent
from textual.events import Key, Paste, TextSelected
from textual.notifications import Notify
from textual.screen import ModalScreen, Screen

from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.chat.reply import Reply
from specchat.app.chat.request_manager import RequestManager, Session
from specchat.app.errors import AppError, UsageError
from specchat.app.settings.settings import WATCH
from specchat.app.sources.player import Player
from specchat.app.sources.probe import Probe
from specchat.app.sources.source import NoSource
from specchat.app.ui.action_table import ACTIONS, REPLAY
from specchat.app.ui.keys import registered
from specchat.app.ui.own_files import own_files
from specchat.app.ui.pump import Pump
from specchat.app.ui.rendering.pictures import without_buttons
from specchat.app.ui.screens.chat import ChatScreen
from specchat.app.ui.textual_internals import disable_toasts, show_as_text
from specchat.app.ui.themes import ThemeChoice, theme_colours
from specchat.app.ui.widgets.bars import NoticeLine
from specchat.app.ui.widgets.chat_list import ChatList
from specchat.app.ui.widgets.composer import Composer
from specchat.app.ui.widgets.transcript import Requested
from specchat.engine import EngineError, Event, Finished, FinishReason, Ready, Record

if TYPE_CHECKING:
    from specchat.app.ui.actions.actions import Actions
    from specchat.app.ui.actions.scope import MakeDuet, MakeSource

STYLES = Path(__file__).parent / "styles"
PROBE_S = 1.0
"""Between two measurements of the load."""
WRITE_S = 0.25
"""Seconds between stores of unsent text: a kill loses this much of it. Replies are stored before they are shown."""


class SpecChat(App[None]):
    """Chat with a model and see how speculative decoding works; or, with a player, watch a recorded trace.

    Passes Textual's messages to the actions (`app.ui.actions`).
    """

    TITLE = "specchat"
    NOTIFICATION_TIMEOUT = 8.0
    CSS_PATH = [STYLES / f"{name}.tcss" for name in ("chat", "dialogs", "views", "screens")]  # noqa: RUF012
    BINDINGS = registered(
        "app",
        Binding("ctrl+q", "quit", "quit", key_display="^q", priority=True),
        Binding("ctrl+p", "command_palette", "palette", key_display="^p", priority=True),
    )

    def __init__(
        self,
        prepare: Callable[[], Session],
        *,
        player: Player | None = None,
        theme: str = "",
        pictures: Path | None = None,
        now: Callable[[], float] = time.time,
        probe: Probe | None = None,
        make_duet: MakeDuet | None = None,
        make_source: MakeSource | None = None,
        begin_side_by_side: bool = False,
    ) -> None:
        """Make the app; nothing runs yet.

        Args:
            prepare: Makes the session; called in a thread after the first frame. `EngineError` and `AppError` are
                shown.
            player: The session's source, if it is a player: the app then shows a replay.
            theme: A theme's name; empty for specchat's own.
            pictures: The folder for pictures and exported chats; specchat's own by default.
            now: The time of day, for the ages of chats.
            probe: Measures the load of the interface and the GPU for the panel; None for no figures.
            make_duet: Makes the lanes of the side-by-side mode; None if it is not available.
            make_source: Makes an engine for settings; None if the models cannot be changed.
            begin_side_by_side: Whether to open that mode at the start.
        """
        super().__init__()
        disable_toasts(self)  # `on_notify` shows notices
        show_as_text(self)
        self._prepare, self._player, self._probe = prepare, player, probe
        self._begin_side_by_side = begin_side_by_side
        self.prepared = asyncio.Event()
        """Set once the session is connected or has failed."""
        self.requests = RequestManager(self._observe)
        self.chat_screen = ChatScreen(self.requests, lambda: self.pump.run(), player)
        self._for_actions = now, pictures, make_duet, make_source, player is not None
        self.pump = Pump(self, self.requests.drain, lambda: self.requests.running.stage, self._handle, self._draw)
        self.chat_screen.pace = self.chat_screen.transcript.pace = self.pump.pace
        self._theme_choice = ThemeChoice(self, theme)
        self._typed_early: list[Key | Paste] | None = []
        """Input before the composer has the focus; None from then on."""

    @cached_property
    def actions(self) -> Actions:
        """All actions. They are imported with their screens when first used, after the first frame is drawn."""
        from specchat.app.ui.actions.actions import Actions

        return Actions(self, self.chat_screen, self.requests, *self._for_actions)

    def get_driver_class(self) -> type[Driver]:
        """Textual's driver; on Linux and macOS one that tolerates invalid input and hang-ups."""
        found = super().get_driver_class()
        if found.__name__ != "LinuxDriver":
            return found
        from specchat.app.ui.terminal_driver import TerminalDriver

        return TerminalDriver

    def get_default_screen(self) -> ChatScreen:
        """The chat, which stays below all other screens."""
        self.chat_screen.fit(self.size)
        return self.chat_screen

    def export_screenshot(self, *, title: str | None = None, simplify: bool = False) -> str:
        """The screen as SVG."""
        return without_buttons(super().export_screenshot(title=title, simplify=simplify))

    def get_css_variables(self) -> dict[str, str]:
        """Textual's variables with the colours of the app, for any theme; plots read them from `theme_variables`."""
        variables = super().get_css_variables()
        self.theme_variables = variables | theme_colours(self.current_theme, variables)
        return self.theme_variables

    def on_mount(self) -> None:
        """Paint first."""
        self._theme_choice.follow()
        self.call_after_refresh(self._load)

    async def on_event(self, event: TextualEvent) -> None:
        """Hold keys and pastes until the composer has the focus; later ones go there if nothing else uses them."""
        if isinstance(event, Key | Paste) and not event.is_forwarded:
            if self._typed_early is not None:
                self._typed_early.append(event)
                return
            self.chat_screen.take_input(event)
        await super().on_event(event)

    async def _take_early(self) -> None:
        """Process the input that was held."""
        typed, self._typed_early = self._typed_early or [], None
        for event in typed:
            await self.on_event(event)

    # Start and end

    @work(exclusive=True, group="prepare")
    async def _load(self) -> None:
        """Connect the session and start to process records; or show why not."""
        self.call_later(self._take_early)
        try:
            session = await asyncio.to_thread(self._prepare)
        except (EngineError, AppError) as error:
            self.actions.records.fail(str(error))
        except Exception as error:
            self.actions.records.fail(f"specchat could not start ({type(error).__name__}: {error})")
        else:
            self._connect(session)
        finally:
            self.prepared.set()

    def _connect(self, session: Session) -> None:
        """Use this session."""
        self.actions.connect(session)
        notices = [*session.notices, *own_files(self, session.settings_file)]
        try:  # also that of the start, which may be in a file of the user
            self._theme_choice.change(session.settings.theme if session.settings else self._theme_choice.first)
        except UsageError as error:
            notices.append(str(error))
        if session.settings is not None:
            self.chat_screen.transcript.rejected = session.settings.rejected
            self.chat_screen.show_view(session.settings.view or WATCH)
        if notices:
            self.notify(" · ".join(notices), severity="warning")
        stepper = self.chat_screen.stepping.through(session.source)
        self.requests.connect(replace(session, source=stepper), self.actions.archive)
        if session.settings is not None and session.settings.reopen == "on":
            self.actions.chats.reopen()
        self.actions.chats.show_list()
        self.pump.start()
        self.set_interval(WRITE_S, self.actions.chats.write)
        self.actions.chats.restore_unsent()
        self.actions.chats.index()
        if self._probe is not None:
            self.set_interval(PROBE_S, self._measure_load)
        if isinstance(session.source, NoSource):
            self.actions.models.begin()
        elif self._begin_side_by_side:
            self.action_run("side-by-side")

    @work(exclusive=True, group="probe", exit_on_error=False)
    async def _measure_load(self) -> None:
        """Show the load of the GPU, which is asked in a thread, and the interface's share of a core."""
        assert self._probe is not None
        interface = self._probe.interface()
        self.chat_screen.widgets.panel.show_load(await asyncio.to_thread(self._probe.gpu), interface)

    async def on_unmount(self) -> None:
        """Store replies and unsent text, however the app ends."""
        await self.actions.comparison.close()
        self.actions.models.downloads.close()
        self.actions.learn.learning.stop()
        self.actions.chats.write()
        await asyncio.to_thread(self.actions.tools.close)
        await asyncio.to_thread(self.requests.close)
        if self.actions.preferences is not None:
            await asyncio.to_thread(self.actions.preferences.close)

    def on_notify(self, event: Notify) -> None:
        """Show a notice on the topmost screen with a notice line."""
        lines = [line for screen in self.screen_stack for line in screen.query(NoticeLine)]
        if lines:
            lines[-1].show(event.notification)

    # With every frame

    def _draw(self) -> None:
        """Show new records.

        Only on the visible screen, because Textual redraws it completely for each change of a covered screen. Not
        before its widgets are styled, and not while the app closes.
        """
        if not self.is_running:
            return
        if (stepper := self.chat_screen.stepping.stepper) is not None:
            self.requests.running.show_steps(stepper.shown, paused=stepper.paused)
        shown = next((screen for screen in reversed(self.screen_stack) if not isinstance(screen, ModalScreen)), None)
        from specchat.app.ui.screens.candidates import CandidatesScreen

        if isinstance(shown, ChatScreen | CandidatesScreen) and shown.is_mounted:
            shown.update()
        self.actions.models.update()
        self.actions.tools.update()
        self.actions.chats.refresh()

    def _observe(self, conversation: Conversation, reply: Reply, event: Event) -> None:
        """Process an event of a reply, after the reply has."""
        if isinstance(event, Finished) and event.reason is FinishReason.ERROR:
            self._take_back(conversation, conversation.prompt_of(reply), event.message)
        elif isinstance(event, Finished) and event.reason is not FinishReason.CANCELLED:
            self.actions.views.after_reply()
            if reply.calls:
                self.actions.tools.answer(conversation, reply)
            else:
                self.actions.chats.entitle(conversation)

    def _take_back(self, conversation: Conversation, prompt: Prompt | None, why: str) -> None:
        """Move the last prompt, if it failed before its first token, from the chat back into the composer."""
        shown = conversation is self.chat_screen.conversation and prompt is conversation.prompts[-1]
        if prompt is None or not shown or prompt.results or len(prompt.replies) > 1 or prompt.replies[0].has_text:
            return
        self.requests.take_back(conversation, prompt, self.chat_screen.writing.take_back([prompt]))
        self.call_later(self.chat_screen.path_changed)
        self.notify(self.actions.tools.explained(conversation, why), severity="error")

    def _handle(self, record: Record) -> None:
        """Process a record about the engine; adapt to the device that it is ready on."""
        if isinstance(record, Ready) and record.conversations:
            if self._probe is not None and record.device == "cuda":
                self._probe.find_gpu(record.device_uuid)
            if self._player is None:  # nothing is computed in a replay
                self.pump.suit(record.device)
                self.actions.draft_from_chats()
        self.actions.records.handle(record)

    # Messages and actions

    def on_chat_list_requested(self, event: ChatList.Requested) -> None:
        """A key or a click in the list of chats."""
        chats = self.actions.chats
        if event.what == "undo":
            chats.undo_delete()
        elif event.chat is not None:
            does = {"open": chats.open, "rename": chats.rename, "delete": chats.delete, "pin": chats.pin}
            does[event.what](event.chat)

    def on_composer_sent(self, event: Composer.Sent) -> None:
        """A prompt or a slash command."""
        self.actions.enter(event.text, event.attachments)

    def on_composer_help_requested(self) -> None:
        """A question mark in an empty composer."""
        self.action_run("keys")

    def on_transcript_requested(self, event: Requested) -> None:
        """A click on a mark of a prompt or a reply, or a key on a token."""
        messages, prompt, replies = self.actions.messages, self.actions.prompt, self.actions.replies
        does: dict[str, Callable[..., object]] = {
            "fork": messages.fork_token,
            "version": lambda asked, of_reply, step: messages.show_sibling(asked.reply if of_reply else asked, step),
            "attachment": lambda asked, place: prompt.open_attachment(asked.attachments[place]),
            "copy": lambda reply: self.copy_to_clipboard((reply.text or reply.thinking).strip()),
            "continue": partial(messages.on_reply, "continue"),
            "penalise": partial(messages.on_reply, "penalise"),
            "code": lambda reply, number: replies.copy_code(number, reply),
            "link": replies.open_address,
        }
        with self.actions.reporting():
            does[event.what](event.about, *event.details)

    def on_text_selected(self, event: TextSelected) -> None:  # noqa: ARG002 the handler's signature
        """Text was selected with the mouse."""
        self.actions.replies.explain_selection()

    def copy_to_clipboard(self, text: str) -> None:
        """Copy a text with the terminal's clipboard sequence, and write it to a file."""
        super().copy_to_clipboard(text)
        self.actions.replies.keep_copy(text)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Entries of the command palette."""
        return self.actions.palette(screen)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide the keys of actions that are not available."""
        if action == "run":
            wanted = ACTIONS[str(parameters[0])]
            if "actions" in vars(self) or self._player is not None:
                return self.actions.available(wanted.name)
            group, _, value = wanted.when.partition(".")  # in the first frame, nothing but the screen is there
            usable = not group or (group == "screen" and bool(attrgetter(value)(self.chat_screen)))
            return usable and wanted.place != REPLAY
        return super().check_action(action, parameters)

    def action_run(self, name: str) -> None:
        """Run an action of the table."""
        self.actions.press(name)

    def action_help_quit(self) -> None:
        """Quit at the second ^c in a row."""
        self.actions.views.press_quit()
