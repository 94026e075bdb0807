"""Client of MCP servers: their tools, and calls of them within limits of time and length."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswerError
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TextIO, TypeVar

from specchat.app.errors import AppError
from specchat.app.sanitize import clean_prompt, escape_controls
from specchat.app.sources.stderr_pipe import StderrPipe
from specchat.engine import JoinedThread, Tool

if TYPE_CHECKING:
    from anyio import CancelScope
    from mcp import Client
    from mcp.types import CallToolResult

T = TypeVar("T")
ListedTool = tuple[str, str, dict[str, Any]]
"""Name, description and schema of the arguments of a tool."""
LONGEST_RESULT = 32_000
"""Characters of a result that the model gets; the rest is cut off."""
MOST_RETURNED = 1 << 20
"""A result with more characters is an error: it was not meant for a model."""
_CLOSING_S = 8.0
"""A server that does not end by itself is ended within this time."""
_MOST_PAGES = 100
"""Pages of a list of tools."""
_ENDED = "ended without an answer"
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class ToolServer:
    """How an MCP server is reached."""

    name: str
    command: str = ""
    """Program that is started and spoken to through its pipes; empty for an address."""
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    """Variables of its environment, besides the few that every program needs."""
    url: str = ""
    """Address of a server with streamable HTTP."""
    headers: dict[str, str] = field(default_factory=dict)
    time_limit: float = 30.0
    """Seconds for the start, and for each call."""


class ToolServerError(AppError):
    """A server cannot be started or does not answer, or a call failed."""


class Connection:
    """One connection to an MCP server, on an event loop in a thread of its own.

    Args:
        server: the server, which is started or connected to at once.
    """

    def __init__(self, server: ToolServer) -> None:
        self._server = server
        self._opened: Future[Client] = Future()
        self._stderr = StderrPipe()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scope: CancelScope | None = None
        self._thread = JoinedThread(f"mcp-{server.name}", self._run, self.ask_to_end)
        self._thread.start()

    def tools(self) -> list[ListedTool]:
        """Name, description and schema of each tool.

        Raises:
            ToolServerError: the server cannot be reached, or does not answer in time.
        """
        return self._wait(self._tools)

    def call(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        """The result of a call.

        Raises:
            ToolServerError: there is none; the connection cannot be used further.
        """
        return self._wait(lambda client: client.call_tool(name, arguments))

    def close(self) -> None:
        """End the connection, and the server if it was started."""
        self.ask_to_end()
        self._thread.join(_CLOSING_S)

    def _wait(self, ask: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """What the server answers."""
        limit = self._server.time_limit
        try:
            client = self._opened.result(limit)
            assert self._loop is not None
            return asyncio.run_coroutine_threadsafe(ask(client), self._loop).result(limit)
        except NoAnswerError:
            why = _too_long(limit)
        except Exception as error:  # whatever a server, a transport or the library raises costs only the call
            why = _reason(error, limit)
            if why == _ENDED and (last := self._stderr.last_line()):
                why = f"{why}: {last}"
        raise ToolServerError(f"the MCP server {self._server.name} {why}")

    async def _tools(self, client: Client) -> list[ListedTool]:
        cursor, found = None, list[ListedTool]()
        for _ in range(_MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += [(each.name, each.description or "", each.input_schema) for each in page.tools]
            cursor = page.next_cursor
            if not cursor:
                break
        return found

    def _run(self) -> None:
        logging.getLogger("mcp").addHandler(logging.NullHandler())  # what a server sends is not printed
        ended: BaseException = ConnectionError("the connection was ended")
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            ended = error
        if not self._opened.done():
            self._opened.set_exception(ended)

    async def _serve(self) -> None:
        from anyio import CancelScope, sleep_forever
        from mcp import Client

        self._loop = asyncio.get_running_loop()
        with closing(self._stderr.sink) as stderr, CancelScope() as self._scope:
            transport = _transport(self._server, stderr)
            async with Client(transport, read_timeout_seconds=self._server.time_limit) as client:
                stderr.close()  # only the server has it now
                self._opened.set_result(client)
                await sleep_forever()

    def ask_to_end(self) -> None:
        """Begin to end the connection; a call that waits fails."""
        with suppress(RuntimeError):  # the loop is closed
            if self._loop is not None and self._scope is not None:
                self._loop.call_soon_threadsafe(self._scope.cancel)


def _transport(server: ToolServer, stderr: TextIO) -> Any:
    """The transport to a server, which prints nothing on this program's stderr but on this one."""
    if server.url:
        return _http(server)
    from mcp import StdioServerParameters, stdio_client

    return stdio_client(StdioServerParameters(command=server.command, args=server.args, env=server.env), stderr)


@asynccontextmanager
async def _http(server: ToolServer) -> AsyncIterator[Any]:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    async with (
        httpx2.AsyncClient(headers=server.headers, timeout=server.time_limit) as client,
        streamable_http_client(server.url, http_client=client) as streams,
    ):
        yield streams


def _too_long(limit: float) -> str:
    return f"did not answer within {limit:g} s"


def _reason(error: BaseException, limit: float) -> str:
    """Why a server failed, as the end of a sentence."""
    from mcp import MCPError
    from mcp.types import CONNECTION_CLOSED, REQUEST_TIMEOUT

    while isinstance(error, BaseExceptionGroup):  # of the tasks of a transport
        error = error.exceptions[0]
    if isinstance(error, MCPError) and error.code == REQUEST_TIMEOUT:
        return _too_long(limit)
    if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
        return _ENDED
    if isinstance(error, FileNotFoundError):
        return f"cannot be started: {error.filename} does not exist"
    words = " ".join(escape_controls(str(error)).split()) or type(error).__name__
    return f"failed: {words:.300}"


class ToolClient:
    """Tools of several MCP servers, under names that a model may call. Use it as a context manager.

    Calls, and changes of the servers, may come from several threads.

    Args:
        servers: the servers, which are connected at once.

    Raises:
        ToolServerError: one cannot be reached.
    """

    def __init__(self, servers: Sequence[ToolServer] = ()) -> None:
        self._servers: dict[str, ToolServer] = {}
        self._connections: dict[str, Connection] = {}
        self._places: dict[str, tuple[str, str]] = {}
        """Server and own name of each tool."""
        self.by_server: dict[str, list[Tool]] = {}
        """The tools of each server."""
        self.add(*servers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools of all servers."""
        return tuple(tool for tools in list(self.by_server.values()) for tool in tools)

    def add(self, *servers: ToolServer) -> None:
        """Connect servers that are not connected.

        Raises:
            ToolServerError: one cannot be reached; then none of them is added.
        """
        servers = tuple(server for server in servers if server.name not in self._connections)
        for server in servers:
            self._servers[server.name] = server
            self._connections[server.name] = Connection(server)
        try:
            for server in servers:
                self.by_server[server.name] = self._tools_of(server.name)
        except BaseException:
            for server in servers:
                self.remove(server.name)
            raise

    def remove(self, server: str) -> None:
        """End the connection to a server, and forget its tools."""
        self.by_server.pop(server, None)
        self._places = {name: place for name, place in self._places.items() if place[0] != server}
        self._end(server)

    def server_of(self, name: str) -> str:
        """The server of a tool; empty if there is none of this name."""
        return self._places.get(name, ("", ""))[0]

    def call(self, name: str, arguments: str) -> str:
        """The text of the result of a call, or one sentence about why there is none.

        Args:
            name: of one of `tools`.
            arguments: a JSON object.
        """
        if name not in self._places:
            return f"error: there is no tool {name}"
        server, own_name = self._places[name]
        try:
            given = json.loads(arguments)
        except ValueError:
            return f"error: the arguments of {name} are not JSON"
        try:
            if server not in self._connections:
                self._connections[server] = Connection(self._servers[server])
            result = self._connections[server].call(own_name, given)
        except ToolServerError as error:
            self._end(server)  # the next call begins a new connection
            return f"error: {error}"
        return _text(name, result)

    def stop(self, name: str) -> None:
        """End the connection that a call of this tool waits for; does not wait. The next call begins a new one."""
        if (connection := self._connections.get(self.server_of(name))) is not None:
            connection.ask_to_end()

    def close(self) -> None:
        """End all connections."""
        for server in list(self._connections):
            self._end(server)

    def _end(self, server: str) -> None:
        if (connection := self._connections.pop(server, None)) is not None:
            connection.close()

    def _tools_of(self, server: str) -> list[Tool]:
        """The tools of a server. A name that is taken gets the server's name before it."""
        made = []
        for own_name, description, schema in self._connections[server].tools():
            name = _UNFIT.sub("_", own_name)[:64]
            if name in self._places:
                name = _UNFIT.sub("_", f"{server}_{own_name}")[:64]
            if name not in self._places:
                self._places[name] = server, own_name
                made.append(Tool(name, clean_prompt(description), json.dumps(schema)))
        return made


def _text(name: str, result: CallToolResult) -> str:
    """The text of a result for the model: without control characters, and cut."""
    texts = [part.text if part.type == "text" else f"({part.type} left out)" for part in result.content]
    text = "\n".join(texts)
    if not texts and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False)
    if len(text) > MOST_RETURNED:
        return f"error: the result of {name} has {len(text):,} characters, more than {MOST_RETURNED:,}: ask for less"
    text = clean_prompt(text)
    if len(text) > LONGEST_RESULT:
        text = f"{text[:LONGEST_RESULT]}\n(cut after {LONGEST_RESULT:,} of {len(text):,} characters)"
    return f"error: {text}" if result.is_error else text or "(no text)"


def named(tools: Sequence[Tool], names: Iterable[str]) -> list[Tool]:
    """The tools with these names.

    Raises:
        AppError: there is no such tool.
    """
    known = {tool.name: tool for tool in tools}
    for name in names:
        if name not in known:
            raise AppError(f"there is no tool {name}: choose from {', '.join(known) or 'none'}")
    return [known[name] for name in names]
