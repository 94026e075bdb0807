"""Actions on stored chats: list, open, rename, pin, delete, restore and search them, and store unsent text."""

import asyncio
from dataclasses import dataclass, field, replace
from functools import partial

from specchat.app.chat import branches
from specchat.app.chat.archive import NoArchive
from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.chat.reply import Reply
from specchat.app.errors import UsageError
from specchat.app.storage.search_index import Hit
from specchat.app.storage.store import Chat
from specchat.app.ui.actions.learning import LearnActions
from specchat.app.ui.actions.models import ModelActions
from specchat.app.ui.actions.scope import ActionGroup, UnavailableError, in_background
from specchat.app.ui.actions.tools import ToolActions
from specchat.app.ui.rendering.block_stack import found_word
from specchat.app.ui.screens.dialogs import RenameScreen
from specchat.app.ui.screens.lists import SearchScreen
from specchat.app.ui.screens.side_by_side import SideScreen

IDLE_S = 1.0
"""Time after a reply until titles are requested."""


@dataclass(eq=False)
class ChatActions(ActionGroup):
    """Actions on stored chats."""

    _models: ModelActions
    _learn: LearnActions
    _tools: ToolActions
    deleted: list[Chat] = field(default_factory=list)
    """Chats that can be restored, the last one first."""
    _untitled: dict[int, Conversation] = field(default_factory=dict)
    """Chats of this run, by id, whose titles are to be written by the model."""
    _listed = 0
    """`RequestManager.changes` when the list of chats was last shown."""

    # The list

    def refresh(self) -> None:
        """Update the list if a reply has started or ended since it was shown."""
        if self._scope.requests.changes != self._listed:
            self.show_list()

    @in_background("list")
    async def show_list(self) -> None:
        """Show the current list."""
        self._listed = self._scope.requests.changes
        stored, active = await self._chats(), self._scope.requests.active
        if stored is not None:
            chats = active.news(stored, self._scope.conversation.chat)
            for before, chat in zip(stored, chats, strict=True):
                if before.news != chat.news:
                    self._scope.archive.change(chat, news=chat.news)
            self._scope.screen.widgets.show_chats(chats, active.marks(chats), self._scope.now())

    def new(self) -> None:
        """Show an empty conversation; replies of the old one continue."""
        self._scope.screen.show(Conversation())
        self.show_list()

    @in_background("open")
    async def open(self, chat: Chat) -> None:
        """Show a chat, also while it is being answered."""
        await self._open(chat)

    @in_background("open")
    async def reopen(self) -> None:
        """Show the chat that was used last, unless a prompt was sent or begun by then."""
        chats = await self._chats()
        if chats and not self._scope.conversation.prompts and not self._scope.screen.typed:
            await self._open(max(chats, key=lambda chat: chat.updated_at))

    @in_background("rename")
    async def rename(self, chat: Chat | None = None) -> None:
        """Ask for another title of a chat, by default of the open one."""
        chat = chat or self._shown
        title = await self._scope.ask(RenameScreen(chat.title))
        if title == "" and (conversation := await self._conversation(chat)) is not None:
            title = conversation.first_words
        if title:
            self._untitled.pop(chat.id, None)
            self._change(chat, title=title)

    def entitle(self, conversation: Conversation) -> None:
        """Let the model write titles of chats after their first reply, in an idle moment."""
        chat, first = conversation.chat, conversation.prompts[0]
        prompts = (each for each in conversation.root.descendants() if isinstance(each, Prompt) and not each.results)
        if chat is not None and all(each is first for each in prompts) and len(first.replies) == first.wanted:
            self._untitled[chat.id] = conversation
        if self._untitled and not self._scope.requests.session.attached:
            self._scope.app.set_timer(IDLE_S, self._entitle_next)

    def _entitle_next(self) -> None:
        """Request the next title, unless the engine works, or side by side, where it would slow the lanes."""
        if not self._scope.requests.idle or any(isinstance(each, SideScreen) for each in self._scope.app.screen_stack):
            return
        for chat_id, conversation in list(self._untitled.items()):
            chat = conversation.chat
            if chat is not None and chat.title == conversation.first_words and conversation.prompts[0].in_context:
                branches.entitle(self._scope.requests, conversation, partial(self._take_title, chat))
                return
            del self._untitled[chat_id]

    @in_background("title")
    async def _take_title(self, chat: Chat, title: str) -> None:
        """Use the model's title, if any, unless the chat was renamed by then; request the next one."""
        self._untitled.pop(chat.id, None)
        stored = await self._chats() or ()
        if title and any(one.id == chat.id and one.title == chat.title for one in stored):
            self._change(chat, title=title)
        self._entitle_next()

    def tag(self, name: str) -> None:
        """`/tag NAME`: add a tag to the open chat, or remove it: a word with # at the beginning of its title."""
        chat, tag = self._shown, f"#{name.lstrip('#')}"
        if len(tag.split()) != 1 or tag == "#":
            raise UsageError(f"/tag {name} is not understood: it takes one word, as in /tag work")
        words = chat.title.split()
        self._change(chat, title=" ".join([word for word in words if word != tag] if tag in words else [tag, *words]))
        self._scope.say(f"{tag} {'removed' if tag in words else 'added'} · searching for {tag} lists its chats")

    def pin(self, chat: Chat | None = None) -> None:
        """Pin a chat to the top of the list, or unpin it; by default the open one."""
        chat = chat or self._shown
        self._change(chat, pinned=not chat.pinned)
        self._scope.say(f"{'unpinned' if chat.pinned else 'pinned'} “{chat.title}”")

    def delete(self, chat: Chat | None = None) -> None:
        """Delete a chat, by default the open one, and say how to undo it."""
        chat = chat or self._shown
        conversation = self._scope.requests.active.of_chat(chat.id)
        if conversation is not None:
            self._scope.requests.abandon(conversation)
        self._scope.archive.change(chat, deleted=True)
        self._learn.forget()
        self.deleted.append(chat)
        self._scope.screen.leave(chat)
        self._scope.say(f"deleted “{chat.title}” · u in the list restores it")
        self.show_list()

    def undo_delete(self) -> None:
        """Restore the chat that was deleted last."""
        if self.deleted:
            chat = self.deleted.pop()
            self._scope.archive.change(chat, deleted=False)
            self._scope.say(f"restored “{chat.title}”")
            self._scope.screen.widgets.chats.restored = chat.id
            self.show_list()

    # Unsent text

    def write(self) -> None:
        """Store unsent text that has changed since the last call."""
        for chat_id, text, attachments in self._scope.screen.writing.unsent.changes():
            self._scope.archive.keep_unsent(chat_id, text, attachments)

    @in_background("unsent")
    async def restore_unsent(self) -> None:
        """Put the unsent text of the last run into the composers of its chats."""
        stored = await asyncio.wrap_future(self._scope.archive.unsent())
        if stored is not None and stored[0]:
            self._scope.screen.writing.restore(*stored)

    # Search

    def search(self, words: str = "") -> None:
        """Ask what to search for, beginning with these words, and open the hit that was chosen."""
        if isinstance(self._scope.archive, NoArchive):
            raise UnavailableError("nothing is stored here: there is nothing to search")
        self._search(words)

    @in_background("history")
    async def index(self) -> None:
        """Update the search index, and give the composer the prompts of all chats."""
        self._scope.archive.index()
        prompts = await asyncio.wrap_future(self._scope.archive.prompts())
        self._scope.screen.writing.remember_asked(prompts or [])

    @in_background("asking")
    async def _search(self, words: str) -> None:
        hit: Hit | None = await self._scope.ask(SearchScreen(self._scope.archive.find, words))
        if hit is None:
            return
        shown = self._scope.conversation
        if shown.chat is None or shown.chat.id != hit.chat_id:
            chat = next((chat for chat in await self._chats() or () if chat.id == hit.chat_id), None)
            opened = None if chat is None else await self._open(chat)
        else:
            opened = shown
        if opened is None or hit.message_id is None:
            return
        part, changed = opened.reveal(hit.message_id)
        for one in changed:
            self._scope.archive.choose(one)
        prompt = opened.prompt_of(part) if isinstance(part, Reply) else part
        if part is not None and prompt is not None:
            self._scope.screen.path_changed()
            found = found_word(hit.excerpt, part.text)
            # After the next refresh, because the chat may have no layout yet.
            self._scope.screen.call_after_refresh(self._scope.screen.go_to, prompt, part, found)

    # Shared parts

    @property
    def _shown(self) -> Chat:
        """The open chat."""
        if self._scope.conversation.chat is None:
            raise UnavailableError("this chat has no messages yet")
        return self._scope.conversation.chat

    def _change(self, chat: Chat, **fields: object) -> None:
        """Change a chat in the store, in the list, and in memory if it is open or being answered."""
        self._scope.archive.change(chat, **fields)
        for one in (self._scope.conversation, self._scope.requests.active.of_chat(chat.id)):
            if one is not None and one.chat is not None and one.chat.id == chat.id:
                one.chat = replace(one.chat, **fields)  # type: ignore[arg-type]
        self.show_list()

    async def _chats(self) -> list[Chat] | None:
        return await asyncio.wrap_future(self._scope.archive.chats())

    async def _conversation(self, chat: Chat) -> Conversation | None:
        conversation = self._scope.requests.active.of_chat(chat.id)
        return conversation or await asyncio.wrap_future(self._scope.archive.open(chat))

    async def _open(self, chat: Chat) -> Conversation | None:
        conversation = await self._conversation(chat)
        if conversation is not None:
            self._scope.screen.show(conversation)
            self._models.compare_with(conversation)
            self._tools.connect(conversation)
            self.show_list()
        return conversation
