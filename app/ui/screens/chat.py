"""The main screen: chats, conversation, panel, composer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message
from textual.screen import Screen
from textual.strip import Strip

from specchat.app.chat import branches
from specchat.app.chat.active_conversations import Marks
from specchat.app.chat.conversation import Conversation
from specchat.app.chat.reply import Reply
from specchat.app.chat.request_manager import RequestManager
from specchat.app.chat.turn import Turn
from specchat.app.settings.settings import SHOW
from specchat.app.sources.player import Player
from specchat.app.sources.stepper import Stepper
from specchat.app.storage.attachments import Attachment
from specchat.app.storage.store import Chat
from specchat.app.ui import slash
from specchat.app.ui.first_prompts import FIRST_PROMPTS
from specchat.app.ui.keys import CHAT, named
from specchat.app.ui.pump import Pace
from specchat.app.ui.rendering.found_line import FoundWord
from specchat.app.ui.rendering.token_lines import REJECTED_SHOWN
from specchat.app.ui.screens.chat_keys import CHAT_KEYS
from specchat.app.ui.screens.chat_layout import ChatLayout
from specchat.app.ui.screens.chat_status import ChatStatus
from specchat.app.ui.screens.inspection import Inspection
from specchat.app.ui.screens.jump import LETTERS, JumpScreen
from specchat.app.ui.screens.panes import Panes
from specchat.app.ui.screens.replay_controls import ReplayControls
from specchat.app.ui.screens.shown_figures import ShownFigures
from specchat.app.ui.screens.stepping import Stepping
from specchat.app.ui.screens.writing import Writing
from specchat.app.ui.textual_internals import use_narrow_compositor
from specchat.app.ui.widgets.bars import ReplayBar
from specchat.app.ui.widgets.composer import Composer
from specchat.app.ui.widgets.timeline import Timeline
from specchat.app.ui.widgets.transcript import Transcript
from specchat.app.ui.widgets.transcript_messages import TokenSelected


class ChatScreen(Screen[None]):
    """Shows one conversation, or a replay. What concerns other chats and the app, it posts as messages."""

    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (48, "-narrow"), (100, "-medium"), (128, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (12, "-low"), (30, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = named(CHAT, *CHAT_KEYS)

    @dataclass
    class CommandEntered(Message):
        """The user sent a line that begins with a slash."""

        line: str

    class ChatBegun(Message):
        """The user began an empty chat."""

    def __init__(self, requests: RequestManager, redraw: Callable[[], None], player: Player | None) -> None:
        """Make it.

        Args:
            requests: Sends prompts and stops replies.
            redraw: Takes in what has come of them, and calls `update`.
            player: Plays a trace; None in a chat.
        """
        # The first frame is styled once: what it shows is said here, not when it is mounted.
        super().__init__(classes="-pane-chat" + (" -replay" if player else ""))
        use_narrow_compositor(self)
        self.pace = Pace()
        self._requests = requests
        self._redraw = redraw
        self._widgets = widgets = ChatLayout(player)
        self._transcript = transcript = widgets.transcript
        if player:  # who watches a trace wants to see its drafts
            transcript.set_reactive(Transcript.rejected, SHOW)
            transcript.forkable = False
        home = transcript if player else widgets.composer
        self._panes = Panes(self, widgets.tabs, widgets.chats, widgets.timeline, home)
        self._inspection = Inspection(self, requests, transcript, widgets.timeline, widgets.inspector, self._panes)
        self._stepping = Stepping(self, widgets.step_bar, self._inspection, redraw)
        self._replay = (
            ReplayControls(player, self._stepping, requests, transcript, self._inspection, redraw) if player else None
        )
        ready = "" if player else "ready: ask anything"
        self.status = ChatStatus(widgets, self._inspection, lambda: self.conversation, ready)
        """What is shown of the engine."""
        self.writing = Writing(self, requests, widgets, lambda: self.conversation)
        """What stands in the composer."""
        self._figures = ShownFigures(self, widgets, self._inspection, self.writing)

    @property
    def conversation(self) -> Conversation:
        """The conversation that is shown."""
        return self._transcript.conversation

    def compose(self) -> ComposeResult:
        """Top to bottom, left to right."""
        yield from self._widgets.compose()

    def on_mount(self) -> None:
        """Names on the frames."""
        self._widgets.chats.border_title = "chats"
        self._widgets.frame.show(self.conversation)
        self._panes.go_home()
        if self._replay is not None:
            self._widgets.masthead.name_it("specchat replay")
            self._widgets.replay_bar.play(self._replay.player)

    def connect(self, stepper: Stepper) -> None:
        """The session is there: its rounds can be held back."""
        self._stepping.stepper = stepper

    def set_pace(self, pace: Pace) -> None:
        """Says how often `update` is called."""
        self.pace = self._transcript.pace = pace

    # What is shown

    def show(self, conversation: Conversation) -> None:
        """Show another conversation."""
        self.writing.keep()
        self.action_cancel_edit()
        self._transcript.show(conversation)
        self._inspection.forget()
        if self._replay is None:
            self.writing.show(conversation)
        self._panes.go_home()
        self._panes.select("chat")
        self._figures.forget()
        self.update()

    @property
    def replies_in_sight(self) -> list[Reply]:
        """Those of which a line is on screen, from the lowest up."""
        return self._transcript.in_sight

    @property
    def reply(self) -> Reply:
        """The reply whose figures are on screen."""
        return self._inspection.reply

    def update(self) -> None:
        """Draw what has changed in the conversation; called with every frame."""
        empty = not self.conversation.turns
        if self._widgets.empty is not empty:
            self._widgets.show_empty(empty=empty)
            self._widgets.composer.offering = empty
        if self._replay is not None:
            self._widgets.replay_bar.update()
        taken = self._figures.take(self.conversation, self.pace)
        self._transcript.update()
        self._stepping.update()
        self._figures.draw(taken=taken)

    def show_chats(self, chats: list[Chat], marks: Marks, now: float) -> None:
        """Show the list of chats; on a narrow screen its tab has a sign if a chat has an unread answer."""
        opened = self.conversation.chat
        self._widgets.chats.show(chats, opened, marks, now)
        self._widgets.tabs.mark(marks.without(opened.id) if opened else marks)
        self._widgets.frame.show(self.conversation)

    def show_rejected(self, how: str) -> None:
        """Fold, show or hide rejected and discarded tokens."""
        self._transcript.rejected = how

    def show_title(self) -> None:
        """The title or the system prompt has changed."""
        self._widgets.frame.show(self.conversation)

    def leave(self, chat: Chat) -> None:
        """A chat is gone; who deleted it in the list stays there, where it can be undone."""
        if self.conversation.chat and self.conversation.chat.id == chat.id:
            in_list = self._widgets.chats.has_focus
            self.show(Conversation())
            if in_list:
                self._panes.show("chats")

    def drawn(self) -> tuple[list[Strip], int]:
        """Every line of the conversation as drawn, and their width in cells."""
        return self._transcript.all_lines()

    # What the user does

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Replay keys work in a replay, chat keys in a chat."""
        replaying = self._replay is not None
        if action == "replay":
            return replaying
        if action == "new_chat" or (action == "pane" and parameters == ("chats",)):
            return not replaying
        if action in ("hold", "step"):
            return self._stepping.stepper is not None
        elsewhere = self._panes.elsewhere or self._inspection.active
        if action == "cancel_edit":
            return self.writing.editing and not elsewhere
        if action == "back":
            return elsewhere
        if action == "stop":
            stoppable = self.conversation.running or self.conversation.waiting
            return bool(stoppable) and not elsewhere and not replaying
        return super().check_action(action, parameters)

    def on_composer_sent(self, event: Composer.Sent) -> None:
        """Ask the model; a line behind one slash is for the app."""
        if slash.is_command(event.text):
            self.post_message(self.CommandEntered(event.text))
        else:
            self.send(event.text, event.attachments)

    def on_text_area_changed(self) -> None:
        """The composer has another text."""
        self.writing.changed()

    def on_transcript_token_selected(self, event: TokenSelected) -> None:
        """A token was clicked on, or moved to."""
        self._inspection.select(event.spot)

    def on_timeline_picked(self, event: Timeline.Picked) -> None:
        """A round was picked: select its first token."""
        self._inspection.select_round(event.reply, event.index)

    def on_replay_bar_sought(self, event: ReplayBar.Sought) -> None:
        """A click on the line of the replay."""
        if self._replay is not None:
            self._replay.seek(event.position)

    def begin_edit(self, turn: Turn) -> None:
        """Let the user write another version of a prompt."""
        self.writing.edit(turn)
        self.action_back()
        self.go_to(turn)

    def action_cancel_edit(self) -> None:
        """Write no other version; what stood in the composer before comes back."""
        self.writing.end_edit()

    def path_changed(self) -> None:
        """Another version is shown from some place on."""
        self._inspection.close()
        self._figures.forget()
        self.update()

    def follow(self) -> None:
        """Show the end of the conversation."""
        self._panes.select("chat")
        self._transcript.follow()

    def go_to(self, turn: Turn, part: Turn | Reply | None = None, found: FoundWord | None = None) -> None:
        """Bring a message to the top of the screen; or, if it stands further below, a word of its prompt or reply."""
        self._panes.select("chat")
        self._transcript.go_to(turn)
        if part is not None and found is not None:
            self._transcript.go_to_word(part, found)

    @property
    def typed(self) -> str:
        """What stands in the composer."""
        return self.writing.text

    def put(self, text: str) -> None:
        """Show a text in the composer, to be changed and sent."""
        self.writing.put(text)

    def send(self, line: str, attachments: tuple[Attachment, ...] | None = None) -> bool:
        """Ask the model, or send another version of the prompt that is being edited.

        Returns:
            Whether what the line names can be sent along. If not, that is said.
        """
        if attachments is None and (attachments := self.writing.resolved(line)) is None:
            return False
        turn, prompt = self.writing.end_edit(), slash.unescaped(line)
        if turn is None:
            if not self.writing.refused(line, attachments):
                self.ask(prompt, 1, attachments)
        elif turn in self.conversation.turns:
            branches.edit(self._requests, self.conversation, turn, prompt, attachments)
            self.path_changed()
            self.follow()
        return True

    def ask(self, prompt: str, candidates: int = 1, attachments: tuple[Attachment, ...] | None = None) -> bool:
        """Ask the model in this conversation; whether what the prompt names can be sent along. If not, that is said."""
        if attachments is None and (attachments := self.writing.resolved(prompt)) is None:
            return False
        self._requests.send(self.conversation, prompt, candidates, attachments)
        self.writing.sent()
        self._transcript.follow()
        self._widgets.frame.show(self.conversation)
        self._redraw()
        return True

    def action_offer(self, place: int) -> None:
        """A click on one of the first prompts."""
        self.put(FIRST_PROMPTS[place].text)
        self._panes.go_home()

    def action_back(self) -> None:
        """From wherever one was to the conversation."""
        self._inspection.close()
        self._panes.select("chat")
        self._panes.go_home()

    def action_stop(self) -> None:
        """End the reply, and take waiting prompts back."""
        if self._replay is None:
            self.writing.take_back(self.conversation.waiting)
        unsent = self.writing.unsent
        self._requests.stop(self.conversation, (unsent.of(self.conversation), unsent.attachments_of(self.conversation)))
        self._widgets.frame.show(self.conversation)
        self.update()

    def action_new_chat(self) -> None:
        """An empty conversation; what runs in the old one goes on."""
        self.show(Conversation())
        self.post_message(self.ChatBegun())

    def action_pane(self, pane: str) -> None:
        """Fold or show the chats or the panel."""
        self._panes.toggle(pane)

    def action_tab(self, pane: str) -> None:
        """A click on a pane's name."""
        self._panes.show(pane)

    def action_timeline(self) -> None:
        """Go to the timeline; from there, fold it."""
        self._panes.toggle_timeline()

    def action_inspect(self) -> None:
        """Look at tokens, from the last one on; again: stop."""
        self._inspection.toggle()

    def action_by_round(self) -> None:
        """One round per line, as in Figure 1 of Leviathan et al. 2023; or running text."""
        self.toggle_class("-by-round")
        self._transcript.markdown = False
        self._transcript.by_round = self.has_class("-by-round")

    def action_hold(self) -> None:
        """Pause between rounds, or resume."""
        self._stepping.toggle()

    def action_step(self) -> None:
        """The next part of a round; pauses first."""
        self._stepping.step()

    def action_jump(self) -> None:
        """Letters beside the messages in sight; the one that is typed is gone to."""
        self._panes.select("chat")
        if places := self._transcript.letter(LETTERS):
            self.app.push_screen(JumpScreen(), partial(self._jump, places))

    def _jump(self, places: Mapping[str, Turn | Reply], letter: str | None) -> None:
        self._transcript.letter("")
        if letter is not None and letter in places:
            self._transcript.go_to(places[letter])

    def action_rejected(self) -> None:
        """Fold, show or hide what is no part of the replies."""
        self.notify(REJECTED_SHOWN[self._transcript.next_rejected()])

    def action_markdown(self) -> None:
        """Replies as Markdown, also while they are written, or token by token."""
        self._transcript.markdown = not self._transcript.markdown

    def action_thoughts(self) -> None:
        """Show the thinking of replies, or fold it."""
        self._transcript.thoughts = not self._transcript.thoughts

    def action_scroll(self, pages: int) -> None:
        """Scroll the conversation by most of its height, whatever has the focus."""
        self._transcript.scroll_relative(y=pages * max(self._transcript.size.height - 2, 1), animate=False)

    def action_replay(self, move: str, steps: int = 1) -> None:
        """Move through the trace."""
        if self._replay is not None and not self._replay.move(move, steps):
            self.notify("no rejection follows in this trace")
