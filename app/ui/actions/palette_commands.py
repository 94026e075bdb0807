"""What the command palette offers, for the state the app is in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from textual.app import App, SystemCommand

from specchat.app.side_by_side.duet import SIDES
from specchat.app.ui.actions.chats import ChatActions
from specchat.app.ui.actions.file_export import FileExport
from specchat.app.ui.actions.reading import ReadingActions
from specchat.app.ui.actions.settings import SettingsActions
from specchat.app.ui.actions.texts import TextActions
from specchat.app.ui.keys import key_of_action
from specchat.app.ui.screens.chat import ChatScreen
from specchat.app.ui.screens.messages import MessageAction
from specchat.app.ui.screens.side_by_side import SideScreen

_MESSAGE_ACTIONS = (
    (MessageAction.EDIT, "Edit", "Write another version of the last prompt"),
    (MessageAction.REGENERATE, "Regenerate", "Another reply to the last prompt"),
    (MessageAction.CONTINUE, "Continue", "Another reply that goes on where the last one ended"),
    (MessageAction.FORK, "Fork chat", "A new chat with everything that was said so far"),
)


class PaletteCommands:
    """The commands that would do something now.

    Args:
        app: Changes the theme, and ends.
        open_view: Opens a view by name.
        of_last: Does something with the last message.
        texts: Has the system prompt and the templates.
        reading: Switches thinking.
        chats: Knows whether a deletion can be undone.
        settings: Knows the presets.
        export: Writes files.
    """

    def __init__(
        self,
        app: App[None],
        open_view: Callable[[str], None],
        chats: ChatActions,
        settings: SettingsActions,
        export: FileExport,
        of_last: Callable[[MessageAction], None],
        texts: TextActions,
        reading: ReadingActions,
    ) -> None:
        self._reading = reading
        self._app = app
        self._open = open_view
        self._chats = chats
        self._settings = settings
        self._export = export
        self._of_last = of_last
        self._texts = texts

    def of_chat(self, screen: ChatScreen, *, replaying: bool, side_by_side: bool) -> Iterator[SystemCommand]:
        """Those of the chat, or of a replay."""
        if not replaying:
            yield from self._of_chats(screen)
            yield SystemCommand("Thinking", "Switch it on or off in this chat", self._reading.switch_thinking)
            yield self._view("Models", "Target and draft: load, fetch, unload", "models")
            yield self._view("Controls", "γ, drafter, temperature and the others, and presets", "controls")
            yield SystemCommand(
                "Several replies",
                "Ask for 2 to 8 replies to one prompt",
                lambda: screen.put(f"/candidates 4 {screen.typed}"),
            )
            if screen.conversation.turns:
                yield self._view("Messages", "Edit, ask again, continue, fork, other versions", "messages")
                for action, title, what in _MESSAGE_ACTIONS:
                    yield SystemCommand(title, what, partial(self._of_last, action))
            if any(turn.wanted > 1 or len(turn.replies) > 1 for turn in screen.conversation.turns):
                yield self._view("Pick a reply", "Show the several replies of this chat again", "candidates")
            for name in self._settings.presets:
                use = partial(self._settings.use_preset, name)
                yield SystemCommand(f"Preset {name}", "Set all controls as they were saved", use)
        if screen.conversation.turns:
            yield self._view("Copy", "The last reply, a code block, or the chat", "copy")
            forms = ("md", "Markdown"), ("json", "JSON, with every round"), ("svg", "a picture of all of it")
            for form, what in forms:
                yield SystemCommand(f"Export {form}", f"Write the chat as {what}", partial(self._export.chat, form))
        if side_by_side:
            yield self._view("Side by side", "One prompt in two set-ups, fairly timed", "side_by_side")
        yield SystemCommand("Panel", "Show or fold the speculation panel", lambda: screen.action_pane("panel"))
        yield SystemCommand("Rejected tokens", "Folded, in place, or hidden", screen.action_rejected)
        yield SystemCommand("Inspector", "Look at tokens: p, q, the draw, the verdict", screen.action_inspect)
        yield SystemCommand("Timeline", "Rounds on a line of time", screen.action_timeline)
        yield SystemCommand("Figure 1", "One round per line, as in the paper; or running text", screen.action_by_round)
        yield SystemCommand("Pause", "Pause between rounds, or go on", screen.action_hold)
        yield SystemCommand("Step", "The next part of a round", screen.action_step)
        yield self._view("Figures", "What each figure means", "definitions")
        yield self._view("Theory", "What the paper predicts for this reply, drawn", "theory")
        yield self._view("Compare drafts", "Which tokens of a reply drafter A has and B has not", "drafts")
        yield self._view("Tour", "Draft, verify, accept, reject, correct, bonus: a screen each", "tour")
        yield SystemCommand("Markdown", "Replies as Markdown, also while written, or tokens", screen.action_markdown)
        yield SystemCommand("Thoughts", "Show the thinking of replies, or fold it", screen.action_thoughts)
        yield self._view("Open link", "One of the replies in sight, in the browser", "links")
        yield from self._of_every_screen("Keys, and what the colours mean", partial(self._open, "help"))

    def of_side_by_side(self, screen: SideScreen) -> Iterator[SystemCommand]:
        """Those of the side-by-side mode."""
        if screen.check_action("go_on", ()):
            for side, name in enumerate(SIDES):
                yield SystemCommand(
                    f"Go on from the {name}",
                    "Back to the chat with this lane's conversation",
                    partial(screen.action_go_on, side),
                )
        if screen.check_action("stop", ()):
            yield SystemCommand("Stop", "End both replies and keep their texts", screen.action_stop)
        else:
            yield SystemCommand("Leave", "Back to the chat; both conversations are stored", screen.action_leave)
        yield SystemCommand("Rejected tokens", "Folded, in place, or hidden", screen.action_rejected)
        yield SystemCommand("Markdown", "Replies as Markdown, also while written, or tokens", screen.action_markdown)
        yield from self._of_every_screen("Keys, and how the clocks count", screen.action_how)

    def _of_every_screen(self, help_text: str, show_help: Callable[[], None]) -> Iterator[SystemCommand]:
        yield self._view("Save picture", "Save the screen as an SVG file", "save_picture")
        yield SystemCommand("Theme", "Change the colours", self._app.action_change_theme)
        yield SystemCommand("Help", help_text, show_help)
        yield SystemCommand("Quit", "Everything is stored", self._app.exit)

    def _of_chats(self, screen: ChatScreen) -> Iterator[SystemCommand]:
        chat = screen.conversation.chat
        yield SystemCommand("New chat", "Begin an empty chat", screen.action_new_chat)
        yield SystemCommand("System prompt", "Instructions to the model in this chat", partial(self._texts.system, ""))
        for name in self._texts.templates.names() if self._texts.templates else ():
            fill = partial(self._texts.template, name)
            yield SystemCommand(f"Template {name}", "A saved prompt; its variables are asked for", fill)
        yield self._view("Editor", "Write the prompt in the editor that VISUAL or EDITOR names", "editor")
        yield SystemCommand("Attach a file", "Send a text file along with the prompt", lambda: screen.put("/attach "))
        yield self._view("Attachments", "Open, expand or remove what is attached", "attachments")
        yield self._view("Context", "How full it is, and what happens then", "context")
        yield self._view("Search", "Find words in all chats", "search")
        yield SystemCommand("Chats", "Show or fold the list of chats", lambda: screen.action_pane("chats"))
        if chat is not None:
            pin = "Unpin chat" if chat.pinned else "Pin chat"
            yield SystemCommand(pin, "Above the others in the list, or among them", partial(self._chats.pin, chat))
            yield SystemCommand("Rename chat", "Give this chat another title", partial(self._chats.rename, chat))
            yield SystemCommand("Delete chat", "Take this chat off the list", partial(self._chats.delete, chat))
        if self._chats.can_undo:
            yield SystemCommand("Undo delete", "Bring the last deleted chat back", self._chats.undo_delete)
        if screen.conversation.running:
            yield SystemCommand("Stop", "End the reply and keep its text", screen.action_stop)

    def _view(self, title: str, help_text: str, view: str) -> SystemCommand:
        key = key_of_action(self._app, f"app.open('{view}')")
        return SystemCommand(title, f"{help_text} · {key}" if key else help_text, partial(self._open, view))
