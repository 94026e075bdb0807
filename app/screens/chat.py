"""The screen everything happens on: chats, conversation, panel, composer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.strip import Strip
from textual.widgets import Static

from app import slash
from app.conversation import Conversation
from app.marks import Marks
from app.player import Player
from app.reply import Reply
from app.sanitize import visible
from app.screens.panes import Panes
from app.store import Chat
from app.widgets.command_hint import CommandHint
from app.widgets.composer import Composer
from app.widgets.key_bar import KeyBar
from app.widgets.masthead import Masthead
from app.widgets.panel import Panel
from app.widgets.replay_bar import ReplayBar
from app.widgets.transcript import Transcript
from app.widgets.welcome import Welcome
from engine import Loading, Ready

if TYPE_CHECKING:
    from app.specchat import SpecChat

PANEL_EVERY = 8
"""The panel is drawn again with every eighth update of the conversation: figures are to be read."""


class ChatScreen(Panes):
    """Shows one conversation. What it is asked to do with chats and the engine, the app does."""

    app: SpecChat
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (48, "-narrow"), (100, "-medium"), (128, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (12, "-low"), (30, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "back", key_display="esc"),
        Binding("escape", "stop", "stop", key_display="esc"),
        Binding("space", "hold", "pause", show=False),
        Binding("plus,equals_sign", "faster(1)", "faster", key_display="+"),
        Binding("minus", "faster(-1)", "slower", key_display="−"),
        Binding("r", "again", "again"),
        Binding("ctrl+n", "new_chat", "new", key_display="^n"),
        Binding("ctrl+b,f2", "pane('chats')", "chats", key_display="^b"),
        Binding("ctrl+g,f3", "pane('panel')", "panel", key_display="^g"),
        Binding("ctrl+r,f4", "rejected", "rejected", key_display="^r"),
        Binding("ctrl+t,f5", "markdown", "Markdown", show=False),
        Binding("ctrl+y", "app.side_by_side", "Side by side", show=False, priority=True),
        Binding("f11", "app.side_by_side", "side by side", key_display="^y"),
        Binding("f1,question_mark", "app.help", "help", key_display="f1"),
        Binding("ctrl+o,f9", "controls", "controls", key_display="^o"),
        Binding("f8", "app.copy", "Copy", show=False),
        Binding("ctrl+s", "app.save_picture", "Save the screen", show=False),
    ]

    def __init__(self, player: Player | None) -> None:
        # The first frame is styled once: what it shows is said here, not when it is mounted.
        super().__init__("-empty -pane-chat" + (" -replay" if player else ""), player)
        self.conversation = Conversation()
        self._masthead = Masthead(id="masthead")
        self._welcome = Welcome(id="welcome")
        self._transcript = Transcript(self.conversation, id="transcript")
        self._hint = CommandHint(id="hint")
        self._replay_bar = ReplayBar(id="replay")
        self._frame = Vertical(id="ask")
        self._panel = Panel(id="panel")
        self._failed = False
        self._loading: Loading | str = Loading("import", "starting", None, 0.0)
        self._no_reply = Reply()
        self._updates = 0
        self._panel_state: tuple[object, ...] | None = None

    def compose(self) -> ComposeResult:
        """Top to bottom, left to right."""
        yield self._masthead
        yield self._tabs
        with Horizontal(id="body"):
            yield self._chats
            with Vertical(id="middle"):
                yield self._welcome
                yield self._transcript
                yield self._timeline
                yield self._step_bar
                with self._frame:
                    yield self._hint
                    yield self._replay_bar if self._player else self._composer
            yield self._panel
            yield self._inspector
        yield KeyBar(compact=True, show_command_palette=False)
        yield Static("specchat needs more room:\nplease make the terminal larger", id="too-small")

    def on_mount(self) -> None:
        """Names on the frames."""
        self._chats.border_title = "chats"
        self._show_title()
        self.focus_composer()
        self._composer.words = self.app.words
        if self._player is not None:
            self._masthead.name_it("specchat replay")
            self._replay_bar.play(self._player)
            self._frame.border_title = visible(self._player.name)

    # What is shown

    def show(self, conversation: Conversation) -> None:
        """Another conversation."""
        self.conversation = conversation
        self._transcript.show(conversation)
        self.forget()
        if self._player is None:
            self._composer.remember([turn.prompt for turn in conversation.turns])
        self.focus_composer()
        self.set_pane("chat")
        self._panel_state = None
        self.update()

    def update(self) -> None:
        """Show what has become of the conversation; called with every frame."""
        self._updates += 1
        empty = not self.conversation.turns
        if self.has_class("-empty") is not empty:
            self.set_class(empty, "-empty")
        if self._player is not None:
            self._replay_bar.update()
        self._transcript.update()
        self.update_steps()
        reply = self.shown_reply()
        state = (reply, reply.stage, len(reply.rounds))
        if state != self._panel_state and (self._updates % PANEL_EVERY == 0 or not reply.running):
            if self._panel_state is None or state[:2] != self._panel_state[:2]:
                self.refresh_bindings()
                self._show_title()
                self._composer.cursor_blink = not reply.running  # a cursor that blinks is drawn all the time
            self._panel_state = state
            self._panel.show(reply)
            self.update_views()
        elif self._updates % PANEL_EVERY == 0:
            self.update_views()  # other lanes may have grown

    def show_loading(self, state: Loading | str, *, failed: bool = False) -> None:
        """How far loading has got, or how it ended."""
        self._loading, self._failed = state, failed
        self._welcome.show(state, failed=failed)
        self._show_title()

    def show_models(self, target: str, drafter: str, gamma: int | None, *, lossless: bool = True) -> None:
        """Who answers, and who drafts."""
        self._no_reply.drafter, self._no_reply.gamma = drafter, gamma
        self._masthead.show_models(target, drafter, gamma, lossless=lossless)

    def show_ready(self, ready: Ready) -> None:
        """The models are loaded."""
        self._masthead.show_machine(ready)
        self._panel.show_machine(ready)
        self.show_loading("" if self._player else "ready: ask anything")

    def show_load(self, gpu: str, interface: float | None) -> None:
        """What the machine does."""
        self._panel.show_load(gpu, interface)

    def show_chats(self, chats: list[Chat], marks: Marks, now: float) -> None:
        """The list at the left; on a narrow screen its tab says that a chat has news."""
        opened = self.conversation.chat
        self._chats.show(chats, opened, marks, now)
        self._tabs.mark(marks.without(opened.id) if opened else marks)
        self._show_title()

    def show_rejected(self, shown: bool) -> None:
        """Whether rejected and discarded tokens are shown in place."""
        self._transcript.show_rejected = shown

    def rename(self, chat: Chat, title: str) -> None:
        """A chat has another title now."""
        if self.conversation.chat and self.conversation.chat.id == chat.id:
            self.conversation.chat = replace(chat, title=title)

    def leave(self, chat: Chat) -> None:
        """A chat is gone; who deleted it in the list stays there, where it can be undone."""
        if self.conversation.chat and self.conversation.chat.id == chat.id:
            in_list = self._chats.has_focus
            self.show(Conversation())
            if in_list:
                self.action_tab("chats")

    def drawn(self) -> tuple[list[Strip], int]:
        """Every line of the conversation as it would be drawn, and their width."""
        return self._transcript.all_lines()

    def shown_reply(self) -> Reply:
        """The reply of the token that is looked at, else the last one."""
        if self._spot is not None:
            return self._spot.reply
        replies = [turn.reply for turn in self.conversation.turns if turn.reply is not None]
        return replies[-1] if replies else self._no_reply

    def _show_title(self) -> None:
        """The frame of the composer says what a message sent now would wait for."""
        if self._player is not None:
            return
        title = visible(self.conversation.title)
        self._frame.border_title = title[:60] if title else "new chat"
        if self._failed:
            state = "the engine has stopped"
        elif self.conversation.running:
            state = "answering · esc stops"
        elif isinstance(self._loading, Loading):
            share = "" if self._loading.fraction is None else f" {self._loading.fraction * 100:.0f} %"
            state = f"{visible(self._loading.text)}{share}"
        else:
            state = ""
        self._frame.border_subtitle = state

    # What the user does

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Replay keys work in a replay, chat keys in a chat."""
        if action in ("faster", "again"):
            return self._player is not None
        if action in ("new_chat", "controls"):
            return self._player is None
        if action == "pane" and parameters == ("chats",):
            return self._player is None
        if action == "back":
            return self.elsewhere
        if action == "stop":
            stoppable = self.conversation.running or self.conversation.waiting
            return bool(stoppable) and not self.elsewhere and self._player is None
        return super().check_action(action, parameters)

    def on_composer_sent(self, event: Composer.Sent) -> None:
        """Ask the model; a line behind one slash is for the app, and stays where it was if it is wrong."""
        if not slash.is_command(event.text):
            self.ask(slash.unescaped(event.text))
        elif not self.app.run_command(event.text):
            self._composer.put(event.text)

    def on_text_area_changed(self) -> None:
        """Say what the command that is being typed takes."""
        self._hint.show(self._composer.text, self._composer.words)

    @property
    def unsent(self) -> str:
        """What stands in the composer."""
        return self._composer.text

    def put(self, text: str) -> None:
        """Show a text in the composer, to be changed and sent."""
        self._composer.put(text)

    def ask(self, prompt: str, candidates: int = 1) -> None:
        """Ask the model in this conversation."""
        self.app.exchange.send(self.conversation, prompt, candidates)
        self._transcript.follow()
        self._show_title()
        self.update()

    def on_composer_help_wanted(self) -> None:
        """A question mark in an empty composer."""
        self.app.action_help()

    def action_back(self) -> None:
        """From wherever one was to the conversation."""
        self.stop_looking()
        self.set_pane("chat")
        self.focus_composer()

    def action_stop(self) -> None:
        """End the reply, and take waiting prompts back."""
        taken = self.app.exchange.stop(self.conversation)
        if taken and self._player is None:
            self._composer.put("\n\n".join([*taken, self._composer.text] if self._composer.text else taken))
        self.update()

    def action_new_chat(self) -> None:
        """An empty conversation; what runs in the old one goes on."""
        self.show(Conversation())
        self.app.list_chats()

    def action_controls(self) -> None:
        """Open the panel of controls."""
        self.app.action_controls()

    def action_rejected(self) -> None:
        """Hide or show what is no part of the reply."""
        self._transcript.show_rejected = not self._transcript.show_rejected

    def action_markdown(self) -> None:
        """Finished replies as Markdown, or token by token."""
        self._transcript.markdown = not self._transcript.markdown

    def action_scroll(self, pages: int) -> None:
        """Scroll the conversation by most of its height, whatever has the focus."""
        self._transcript.scroll_relative(y=pages * max(self._transcript.size.height - 2, 1), animate=False)

    def action_faster(self, steps: int) -> None:
        """Change the replay's speed."""
        if self._player is not None:
            self._player.faster(steps)

    def action_again(self) -> None:
        """Play from the start."""
        self.replay_again()
