"""What is on screen: other screens, how replies are drawn, the theme; and comparisons of drafters and setups."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from time import monotonic

from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.chat.lessons import lessons
from specchat.app.chat.reply import Reply
from specchat.app.chat.second_reading import SecondReading, said_texts
from specchat.app.errors import AppError, UsageError
from specchat.app.paths import TOUR
from specchat.app.settings.settings import CHAT, DEMONSTRATION, WATCH
from specchat.app.side_by_side.duet import Duet
from specchat.app.ui.actions.chats import ChatActions
from specchat.app.ui.actions.scope import STILL_STARTING, ActionGroup, UnavailableError, in_background
from specchat.app.ui.actions.settings import SettingsActions
from specchat.app.ui.keys import key_names
from specchat.app.ui.rendering.token_lines import REJECTED_SHOWN
from specchat.app.ui.screens.alignment import AlignmentScreen
from specchat.app.ui.screens.cache import CacheScreen
from specchat.app.ui.screens.candidates import CandidatesScreen
from specchat.app.ui.screens.chat import ChatScreen
from specchat.app.ui.screens.controls import ControlsScreen
from specchat.app.ui.screens.dialogs import LETTERS, JumpScreen, ThemeScreen
from specchat.app.ui.screens.help import DefinitionsScreen, KeysScreen, chat_help
from specchat.app.ui.screens.json_tree import JsonScreen, read_json
from specchat.app.ui.screens.side_by_side import SideScreen
from specchat.app.ui.screens.tour import TourScreen
from specchat.app.ui.themes import check_theme
from specchat.app.ui.widgets.transcript import Transcript
from specchat.engine import EngineError, read_trace, unknown_drafter

QUIT_S = 2.0
"""Within this time a second ^c quits."""
BETTER_MODELS = "This is a small demonstration model. {} shows what this machine can run."


@dataclass(eq=False)
class Views(ActionGroup):
    """Opens screens that need no input, and changes how replies are drawn."""

    _controls: SettingsActions
    _quits_until = 0.0
    """When ^c no longer quits, by `time.monotonic`."""

    def controls(self) -> None:
        """The panel of controls."""
        if self._scope.requests.settings is None:
            raise UnavailableError(STILL_STARTING)
        self._scope.app.push_screen(ControlsScreen(self._controls))

    def help(self) -> None:
        """Keys, fates, commands."""
        self._scope.app.push_screen(chat_help(replaying=self._scope.replaying))

    def keys(self) -> None:
        """The keys of the focused widget."""
        self._scope.app.push_screen(KeysScreen())

    def tour(self) -> None:
        """Speculative decoding explained on a recorded reply."""
        self._scope.app.push_screen(TourScreen(lessons(read_trace(TOUR))))

    def cache(self) -> None:
        """What the cache holds, by chat."""
        if not self._scope.requests.show_cache():
            raise UnavailableError("the cache is empty: no model is loaded yet")
        self._scope.app.push_screen(CacheScreen(self._scope.requests.show_cache, self._chat_of))

    def _chat_of(self, request_id: str) -> tuple[int, str]:
        """Id and present title of the chat of a request."""
        row, title = self._scope.requests.chat_of(request_id)
        chats = self._scope.screen.widgets.chats.chats
        return row, next((chat.title for chat in chats if chat.id == row), title)

    def definitions(self) -> None:
        """The meaning of each figure."""
        self._scope.app.push_screen(DefinitionsScreen())

    def tree(self) -> None:
        """The JSON of this reply as a tree."""
        reply = self._scope.screen.reply
        if not (reply.running and reply.constraint):
            try:
                read_json(reply)
            except ValueError:
                raise UnavailableError("this reply is no complete JSON: /schema FILE asks for it") from None
        self._scope.app.push_screen(JsonScreen(reply))

    def theory(self) -> None:
        """What the paper predicts for this reply, as plots."""
        from specchat.app.ui.screens.theory import TheoryScreen  # imports a plotting library, too slow for the start

        self._scope.app.push_screen(TheoryScreen(self._scope.screen.reply))

    def press_quit(self) -> None:
        """Quit at the second ^c in a row; the first one shows a notice, with the key that stops replies."""
        if monotonic() < self._quits_until:
            self._scope.app.exit()
            return
        self._quits_until = monotonic() + QUIT_S
        stops = ""
        match self._scope.app.screen:
            case CandidatesScreen():
                stops = "^x stops all · "
            case ChatScreen() as chat if chat.stoppable:
                stops = "esc stops the reply · "
            case SideScreen() as side if side.check_action("stop", ()):
                stops = "esc stops the reply · "
        self._scope.say(f"{stops}^c again quits")

    def use_theme(self, name: str = "") -> None:
        """`/theme NAME`; without a name, choose one."""
        if not name:
            self._choose_theme()
            return
        check_theme(name, self._scope.app.available_themes)
        self._scope.app.theme = name
        if self._scope.requests.settings is not None:
            self._controls.remember(theme=name)

    @in_background("asking")
    async def _choose_theme(self) -> None:
        names, before = sorted(self._scope.app.available_themes), self._scope.app.theme
        chosen = await self._scope.ask(ThemeScreen(names, before))
        if chosen is None:
            self._scope.app.theme = before
        else:
            self.use_theme(names[chosen])

    def toggle(self, look: str) -> None:
        """Replies as Markdown, or token by token; show or fold thinking, calls and their results."""
        setattr(self._transcript, look, not getattr(self._transcript, look))

    def toggle_watch(self) -> None:
        """Show or hide the instruments; later starts open in the same view. A narrow screen shows the panel alone."""
        screen, view = self._scope.screen, CHAT if self._scope.screen.watched else WATCH
        if not self._scope.replaying:
            self._controls.remember(view=view)
            screen.show_view(view)
        if screen.has_class("-narrow"):
            screen.panes.show("panel" if view == WATCH else "chat")
        else:
            screen.panes.select("chat")

    def after_reply(self) -> None:
        """A reply has ended: a new user's next start opens in the chat view; the way to better models is told once."""
        if (settings := self._scope.requests.settings) is None:  # a replay
            return
        if not settings.view:
            self._controls.remember(view=CHAT)
        if settings.tips == "on" and settings.target == DEMONSTRATION and self._scope.make_source is not None:
            self._controls.remember(tips="off")
            self._scope.say(BETTER_MODELS.format(key_names(self._scope.app, "chat.models", 1)))

    def next_rejected(self) -> None:
        """Fold, show or hide rejected and discarded tokens, in turn."""
        self._scope.app.notify(REJECTED_SHOWN[self._transcript.next_rejected()])

    def jump(self) -> None:
        """Show a letter next to each visible message, and go to the message whose letter is pressed."""
        self._scope.screen.panes.select("chat")
        if places := self._transcript.painter.letter(LETTERS):
            self._scope.app.push_screen(JumpScreen(), partial(self._jump, places))

    def _jump(self, places: Mapping[str, Prompt | Reply], letter: str | None) -> None:
        self._transcript.painter.letter("")
        if letter is not None and letter in places:
            self._transcript.go_to(places[letter])

    @property
    def _transcript(self) -> Transcript:
        return self._scope.screen.transcript


@dataclass(eq=False)
class ComparisonActions(ActionGroup):
    """Opens the comparison of drafters and the side-by-side mode."""

    _chats: ChatActions
    _duet: Duet | None = None
    _alignment: AlignmentScreen | None = None
    """The screen as it was last shown, with its two drafters."""

    # Two drafters on one reply

    def pairs(self) -> list[str]:
        """Possible arguments of `/drafts`."""
        return [" ".join(two) for two in permutations(self._drafters(), 2)]

    def drafts(self, argument: str = "") -> None:
        """`/drafts A B`: compare these drafters; by default the last pair, or the reply's and the next best."""
        screen, names, drafters = self._scope.screen, argument.split(), self._drafters()
        try:
            reading = SecondReading(self._scope.requests, screen.conversation, screen.reply)
            if names and len(names) != 2:
                raise UsageError("/drafts takes two drafters, as in /drafts combined suffix, or none to choose them")
            for name in names:
                if name not in drafters:
                    raise UsageError(unknown_drafter(name, drafters))
            if len(drafters) < 2:
                raise UsageError(
                    "there is only one drafter: load a draft model (--draft, /draft NAME) to compare it with"
                )
            if names and names[0] == names[1]:
                raise UsageError(f"both drafters are {names[0]}: name two different ones")
        except AppError as error:
            raise error if argument else UnavailableError(str(error)) from None
        first, second = names or self._default_pair(screen.reply.drafter)
        texts = said_texts(screen.reply)
        self._alignment = AlignmentScreen(texts, drafters, (first, second), reading.gamma, reading.begin)
        self._scope.app.push_screen(self._alignment)

    def _drafters(self) -> list[str]:
        return [name for name in self._scope.loaded.drafters if name != "none"]

    def _default_pair(self, of_reply: str) -> tuple[str, str]:
        """The last pair if it is still available, else the reply's drafter and the best of the others."""
        drafters = self._drafters()
        if self._alignment is not None and set(self._alignment.chosen) <= set(drafters):
            return self._alignment.chosen
        first = of_reply if of_reply in drafters else drafters[0]
        return first, next(name for name in drafters if name != first)

    # Side by side

    def side_by_side(self) -> None:
        """Open the side-by-side mode, unless a reply is being written: that would slow both lanes."""
        if self._scope.make_duet is None or self._duet is not None:
            return
        if self._scope.requests.replies or self._scope.conversation.running:
            raise UnavailableError("a reply is being written, and it would slow both lanes: wait for it, or stop it")
        self._scope.requests.make_way()
        try:
            self._duet = self._scope.make_duet(self._scope.settings)
        except (AppError, EngineError) as error:
            raise UnavailableError(str(error)) from None
        for conversation in self._duet.conversations:
            conversation.constraint = self._scope.conversation.constraint
            conversation.constraint_name = self._scope.conversation.constraint_name
        screen = SideScreen(self._duet, self._scope.archive)
        self._scope.app.push_screen(screen, partial(self._leave, screen))
        if self._scope.conversation.tools:
            screen.call_after_refresh(self._scope.say, "side by side, the model cannot call tools", "warning")

    async def close(self) -> None:
        """End both lanes and store their replies. Must run before the store is closed."""
        duet, self._duet = self._duet, None
        if duet is not None:
            await asyncio.to_thread(duet.end)

    @in_background("side")
    async def _leave(self, side: SideScreen, conversation: Conversation | None) -> None:
        """Return from the side-by-side mode, and continue a lane's conversation, if any; unsent text moves along."""
        text, attachments = side.composer.unsent
        await self.close()
        if conversation is not None:
            left, right = side.duet.conversations
            conversation.join(right if conversation is left else left)
            for reply in conversation.replies[:1]:
                self._scope.archive.choose(reply)
            for reply in (reply for prompt in conversation.prompts for reply in prompt.replies):
                reply.side_by_side = False  # in the chat, the line below it has the speedup too
            self._scope.screen.show(conversation)
        if text:
            self._scope.screen.writing.put_before(text, attachments)
        self._chats.show_list()
