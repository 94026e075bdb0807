"""The main screen: chats, conversation, panel, composer."""

from collections.abc import Callable

from textual.app import ComposeResult
from textual.events import Key, Paste

from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.chat.reply import Reply
from specchat.app.chat.request_manager import RequestManager
from specchat.app.settings.settings import CHAT as CHAT_VIEW
from specchat.app.settings.settings import WATCH
from specchat.app.sources.player import Player
from specchat.app.storage.store import Chat
from specchat.app.ui import slash
from specchat.app.ui.action_table import ACTIONS, DETAILS, chat_bindings
from specchat.app.ui.first_prompts import FIRST_PROMPTS
from specchat.app.ui.keys import CHAT, registered
from specchat.app.ui.rendering.block_stack import FoundWord
from specchat.app.ui.screens.chat_layout import ChatBase
from specchat.app.ui.screens.inspection import Inspection
from specchat.app.ui.screens.stepping import Stepping
from specchat.app.ui.screens.writing import Writing
from specchat.app.ui.widgets.timeline import Timeline
from specchat.app.ui.widgets.transcript import TokenSelected


class ChatScreen(ChatBase):
    """Shows one conversation, or a replay. Requests about other chats and the app are posted as messages.

    Args:
        requests: Sends prompts and stops replies.
        redraw: Processes new records, and calls `update`.
        player: Plays a trace; None in a chat.
    """

    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (48, "-narrow"), (100, "-medium"), (128, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (12, "-low"), (30, "-tall")]  # noqa: RUF012
    BINDINGS = registered(CHAT, *chat_bindings())

    def __init__(self, requests: RequestManager, redraw: Callable[[], None], player: Player | None) -> None:
        super().__init__(requests, redraw, player)
        self.writing = Writing(self)
        self.inspection = Inspection(self, self.writing.gauge)
        self.stepping = Stepping(self, self.inspection, player)
        self.widgets.replay_bar.seek = self.stepping.seek

    def compose(self) -> ComposeResult:
        """Top to bottom, left to right."""
        yield from self.widgets.compose()

    def on_mount(self) -> None:
        """Set titles and the focus."""
        self.widgets.chats.border_title = "chats"
        self.widgets.show_frame()
        self.panes.go_home()

    # Content

    @property
    def watched(self) -> bool:
        """Whether the instruments are on screen."""
        return not self.has_class("-chat") and (not self.has_class("-narrow") or self.has_class("-pane-panel"))

    def show_view(self, view: str) -> None:
        """Show the chat with or without the instruments, one of `VIEWS`."""
        self.set_class(view == CHAT_VIEW, "-chat")
        self.transcript.drafts = view == WATCH

    def show(self, conversation: Conversation) -> None:
        """Show another conversation."""
        self.writing.keep()
        self.writing.end_edit()
        self.transcript.show(conversation)
        self.inspection.close()
        self.inspection.forget()
        if not self.widgets.replaying:
            self.writing.show(conversation)
        self.panes.go_home()
        self.panes.select("chat")
        self.update()

    @property
    def reply(self) -> Reply:
        """The reply whose figures are on screen."""
        return self.inspection.reply

    def update(self) -> None:
        """Draw changes in the conversation; called with every frame."""
        empty = not self.conversation.prompts
        if self.widgets.empty is not empty:
            self.widgets.show_empty(empty=empty)
            self.widgets.composer.offering = empty
        if self.widgets.replaying:
            self.widgets.replay_bar.follow()
        taken = self.inspection.take_figures()
        self.transcript.update()
        self.stepping.update()
        self.inspection.draw_figures(taken=taken)

    def leave(self, chat: Chat) -> None:
        """Close a deleted chat. The focus stays in the list, where the deletion can be undone."""
        if self.conversation.chat and self.conversation.chat.id == chat.id:
            in_list = self.widgets.chats.has_focus
            self.show(Conversation())
            if in_list:
                self.panes.show("chats")

    def path_changed(self) -> None:
        """Another version of a message is shown."""
        self.inspection.close()
        self.inspection.draw_again()
        self.update()

    def follow(self) -> None:
        """Show the end of the conversation."""
        self.panes.select("chat")
        self.transcript.follow()

    def go_to(self, prompt: Prompt, part: Prompt | Reply | None = None, found: FoundWord | None = None) -> None:
        """Scroll a message to the top of the screen, or further, to a word of its prompt or reply."""
        self.panes.select("chat")
        self.transcript.go_to(prompt)
        if part is not None and found is not None:
            self.transcript.go_to(part, found)

    # Prompts

    @property
    def typed(self) -> str:
        """The text of the composer."""
        return self.widgets.composer.text

    def put(self, text: str) -> None:
        """Put a text into the composer."""
        self.widgets.composer.put(text)

    def take_input(self, event: Key | Paste) -> None:
        """Focus the composer for text that nothing on screen uses; it then receives the event."""
        home, text = self.widgets.composer, isinstance(event, Paste) or event.is_printable
        idle = self.focused is None or (self.focused is self.transcript and not self.inspection.active)
        if not text or not idle or self.widgets.replaying or not self.is_active:
            return
        if isinstance(event, Paste) or event.key not in self.active_bindings:
            self.panes.select("chat")
            self.set_focus(home)

    # Messages of the widgets

    def on_mouse_scroll_down(self) -> None:
        """Scroll the conversation, also next to it."""
        self.transcript.scroll_down(animate=False)

    def on_mouse_scroll_up(self) -> None:
        """Scroll the conversation, also next to it."""
        self.transcript.scroll_up(animate=False)

    def on_text_area_changed(self) -> None:
        """The text of the composer has changed."""
        self.writing.changed()

    def on_transcript_token_selected(self, event: TokenSelected) -> None:
        """A token was selected."""
        self.inspection.select(event.spot)

    def on_timeline_picked(self, event: Timeline.Picked) -> None:
        """A round was selected."""
        self.inspection.select_round(event.reply, event.index)

    # Actions of the table

    @property
    def elsewhere(self) -> bool:
        """Whether something other than the conversation is in use."""
        return self.panes.elsewhere or self.inspection.active

    @property
    def can_switch(self) -> bool:
        """Whether the instruments can be hidden: a replay has nothing else."""
        return not self.widgets.replaying or self.has_class("-narrow")

    @property
    def can_cancel_edit(self) -> bool:
        """Whether escape cancels the edit of a prompt."""
        return self.writing.editing is not None and not self.elsewhere

    @property
    def can_clear(self) -> bool:
        """Whether escape clears a command in the composer."""
        return slash.is_command(self.typed) and not (self.elsewhere or self.can_cancel_edit or self.stoppable)

    @property
    def stoppable(self) -> bool:
        """Whether escape stops a reply."""
        return bool(self.conversation.running or self.conversation.waiting) and not self.elsewhere

    def back(self) -> None:
        """Return to the conversation."""
        self.inspection.close()
        self.panes.select("chat")
        self.panes.go_home()

    # Actions of the widgets

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Letters of the details work while the details are shown, others in a replay."""
        if action == "letter":
            works = self.inspection.shown if ACTIONS[str(parameters[0])].help == DETAILS else self.widgets.replaying
            return works and self.app.check_action("run", parameters)
        return super().check_action(action, parameters)

    async def action_letter(self, name: str) -> None:
        """Run an action whose key is a letter."""
        await self.run_action(f"app.run('{name}')")

    def action_offer(self, place: int) -> None:
        """A click on one of the first prompts."""
        self.put(FIRST_PROMPTS[place].text)
        self.panes.go_home()

    def action_tab(self, pane: str) -> None:
        """A click on a pane's name."""
        self.panes.show(pane)

    def action_scroll(self, pages: int) -> None:
        """Scroll the conversation by most of its height, also without focus."""
        self.transcript.scroll_relative(y=pages * max(self.transcript.size.height - 2, 1), animate=False)
