"""Tools of MCP servers: which of them a chat offers, and the calls of its replies."""

import asyncio
from dataclasses import dataclass, field

from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.chat.reply import Reply
from specchat.app.chat.tool_calls import COMPLETE, DECLINED, Calling, check_replies, result_of
from specchat.app.chat.tool_servers import server_entries, tool_server
from specchat.app.errors import SettingsError
from specchat.app.sanitize import escape_controls, without_password
from specchat.app.settings.settings_file import SERVERS
from specchat.app.sources.tool_client import ToolClient
from specchat.app.ui.actions.scope import ActionGroup, UnavailableError, in_background
from specchat.app.ui.rendering.figures import counted
from specchat.app.ui.screens.calls import CallScreen
from specchat.engine import MessagePart

NO_TOOLS = (
    "{} cannot call tools, or its chat template has no place for them: choose a model that was trained to call tools "
    "(ctrl+\\)"
)


@dataclass(eq=False)
class ToolActions(ActionGroup):
    """Actions on the tools of a chat. Calls are asked about while their chat is on screen, and made in threads."""

    _clients: list[ToolClient] = field(default_factory=list)
    """The clients of all chats."""
    _hidden: list[tuple[Conversation, Reply]] = field(default_factory=list)
    """Replies with a call that is asked about once their chat is on screen."""

    # Servers

    def names(self) -> list[str]:
        """Possible arguments of `/mcp`."""
        file = self._scope.requests.session.settings_file
        try:
            return list(server_entries(file)) if file is not None else []
        except SettingsError:
            return []

    def command(self, name: str = "") -> None:
        """`/mcp NAME`: turn a server of the settings file on or off for this chat; without a name, choose one."""
        file = self._scope.requests.session.settings_file
        if file is None:
            raise UnavailableError("there is no settings file here that could name MCP servers")
        if not name and not server_entries(file):
            raise UnavailableError(
                f'no MCP server is in {file}: add [{SERVERS}.NAME] with command = "…" and args = ["…"], or url = "…"'
            )
        if not name:
            self._choose()
        elif (client := self._scope.conversation.client) is not None and name in client.by_server:
            self._turn_off(self._scope.conversation, client, name)
        elif not self._scope.loaded.drafters:
            raise UnavailableError("no model is loaded yet: wait until one is, because not every model can call tools")
        elif not self._scope.loaded.tools:
            raise UnavailableError(NO_TOOLS.format(self._scope.loaded.target))
        else:
            self._turn_on(self._scope.conversation, name)

    @in_background("asking")
    async def _choose(self) -> None:
        names = self.names()
        sentence = "Choose a server to turn it on or off in this chat. You decide about each call of its tools."
        place = await self._scope.choose("tools of MCP servers", [self._about(name) for name in names], sentence)
        if place is not None:
            self.command(names[place])

    def _about(self, name: str) -> tuple[str, str]:
        """A server, and its tools with what was decided about them, or how it is reached."""
        conversation, file = self._scope.conversation, self._scope.requests.session.settings_file
        tools = conversation.client.by_server.get(name) if conversation.client is not None else None
        if tools is not None:
            kept = conversation.decisions.by_tool
            decided = (f"{tool.name} ({kept[tool.name]})" if tool.name in kept else tool.name for tool in tools)
            return f"● {escape_controls(name)}", ", ".join(decided) or "no tools"
        try:
            assert file is not None
            server = tool_server(file, name)
            how = without_password(server.url) or " ".join([server.command, *server.args])
        except SettingsError as error:
            how = str(error)
        return f"○ {escape_controls(name)}", escape_controls(how)

    def connect(self, conversation: Conversation) -> None:
        """Connect the servers that are on in a chat from the store."""
        if conversation.servers and conversation.client is None:
            self._turn_on(conversation, *conversation.servers)

    @in_background("servers", exclusive=False)
    async def _turn_on(self, conversation: Conversation, *names: str) -> None:
        if conversation.client is None:
            conversation.client = ToolClient()
            self._clients.append(conversation.client)
        self._scope.requests.active.watch(conversation)
        conversation.connecting += 1
        try:
            for name in names:
                with self._scope.reporting():
                    await self._connect(conversation, conversation.client, name)
        finally:
            conversation.connecting -= 1
            self._scope.archive.set_options(conversation)
            self._scope.requests.proceed(conversation)

    async def _connect(self, conversation: Conversation, client: ToolClient, name: str) -> None:
        """Connect a server, which is on from then on; one that cannot be reached stays as it was."""
        others = tuple(other for other in conversation.servers if other != name)
        file = self._scope.requests.session.settings_file
        assert file is not None
        try:
            server = tool_server(file, name)
        except SettingsError:
            conversation.servers = others
            raise
        self._scope.say(f"connecting to {name}…")
        await asyncio.to_thread(client.add, server)
        conversation.servers = *others, name
        tools = counted(len(client.by_server[name]), "tool")
        self._changed(f"{name}: {tools} from the next reply on · you decide about each call")

    @in_background("servers", exclusive=False)
    async def _turn_off(self, conversation: Conversation, client: ToolClient, name: str) -> None:
        conversation.decisions.forget(tool.name for tool in client.by_server[name])
        conversation.servers = tuple(other for other in conversation.servers if other != name)
        self._scope.archive.set_options(conversation)
        await asyncio.to_thread(client.remove, name)
        self._changed(f"{name} is off in this chat")

    def _changed(self, sentence: str) -> None:
        self._scope.screen.widgets.show_frame()
        self._scope.screen.writing.gauge.ask()
        self._scope.say(sentence)

    def explained(self, conversation: Conversation, refusal: str) -> str:
        """Why a prompt was refused, with the command that turns tools off if the model cannot call them."""
        client, loaded = conversation.client, self._scope.loaded
        if client is None or not client.tools or loaded.tools or any(reply.calls for reply in conversation.replies):
            return refusal
        off = " and ".join(f"/mcp {name}" for name in client.by_server)
        return f"{refusal} · {off} turns the tools of this chat off"

    def close(self) -> None:
        """End the connections to all servers, and their calls."""
        for client in self._clients:
            client.close()

    # Calls

    def answer(self, conversation: Conversation, reply: Reply) -> None:
        """Ask about the calls of an ended reply, make them, and request the reply to their results.

        Calls in one of several replies wait until `/continue`, as only one of these replies is continued.
        """
        prompt = reply.parent
        if conversation.tools and isinstance(prompt, Prompt) and reply.reason in COMPLETE and prompt.wanted == 1:
            self.resume(conversation, reply)

    def resume(self, conversation: Conversation, reply: Reply) -> None:
        """Ask about the calls of a reply that have no result.

        Raises:
            AppError: no server is on, or the model has called too often.
        """
        if conversation.client is None or not conversation.tools:
            raise UnavailableError("the calls of this reply have no result, and no server is on: /mcp NAME turns it on")
        if reply.parent in conversation.prompts:
            with self._scope.reporting():
                check_replies(conversation.messages(reply.parent))
                reply.calling = Calling()
                self._answer(conversation, conversation.client, reply, reply.calling)

    def update(self) -> None:
        """Ask about the calls that waited for the chat that is now on screen; called with every frame."""
        if self._scope.app.screen is self._scope.screen:
            for conversation, reply in list(self._hidden):
                shown = conversation is self._scope.conversation and reply in conversation.replies
                if reply.calling is None or shown:
                    self._hidden.remove((conversation, reply))
                    if reply.calling is not None:
                        reply.calling.woken.set()

    @in_background("calls", exclusive=False)
    async def _answer(self, conversation: Conversation, client: ToolClient, reply: Reply, calling: Calling) -> None:
        known, calls = reply.returned, reply.calls
        results = [known[call.call_id] for call in calls if call.call_id in known]
        try:
            for place, call in enumerate(calls, 1):
                if call.call_id in known:
                    continue
                calling.call = call
                allowed = conversation.decisions.allows(call.name)
                if allowed is None:
                    self._hidden.append((conversation, reply))
                    allowed = await self._ask(conversation, client, calling, f"call {place} of {len(calls)}")
                text = await self._made(client, call, calling) if allowed else DECLINED
                if calling.stopped:
                    break
                results.append(result_of(call, text))
        finally:
            reply.calling = None
        if len(results) > len(known):
            self._scope.requests.send_results(conversation, reply, results, complete=len(results) == len(calls))
        else:
            self._scope.requests.proceed(conversation)
        self._show()

    async def _ask(self, conversation: Conversation, client: ToolClient, calling: Calling, title: str) -> bool:
        """Whether the user allows the present call; asked once its chat is on screen."""
        call, calling.asks = calling.call, True
        assert call is not None
        try:
            self._show()
            if conversation is not self._scope.conversation:
                self._scope.say(f"“{conversation.title}” waits for your decision about a call of {call.name}")
            await calling.wait()
            if calling.stopped:
                return False
            about = next((tool.description for tool in client.tools if tool.name == call.name), "")
            decision = await self._scope.ask(CallScreen(title, client.server_of(call.name), about, call))
        finally:
            calling.asks = False
        if decision is None:
            self._scope.requests.stop(conversation, self._scope.screen.writing.take_back(conversation.waiting))
            return False
        return conversation.decisions.take(call.name, decision)

    async def _made(self, client: ToolClient, call: MessagePart, calling: Calling) -> str:
        """The text of the result of a call; without meaning if the user stops it."""
        self._show()
        made = asyncio.ensure_future(asyncio.to_thread(client.call, call.name, call.text))
        made.add_done_callback(lambda _: calling.woken.set())
        await calling.wait()
        if not calling.stopped:
            return made.result()
        client.stop(call.name)
        return ""

    def _show(self) -> None:
        """Show what happens to calls in the frame of the composer, and the key that stops them."""
        self._scope.screen.widgets.show_frame()
        self._scope.screen.refresh_bindings()
