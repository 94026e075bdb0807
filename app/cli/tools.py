"""Tools of MCP servers for `specchat ask`: each call is approved on the terminal, or by `--allow-tools`."""

import json
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from specchat.app.chat.tool_calls import DECLINED, Decision, Decisions, check_replies, result_of
from specchat.app.chat.tool_servers import tool_server
from specchat.app.cli.progress import warn
from specchat.app.errors import UsageError
from specchat.app.paths import settings_file
from specchat.app.sources.tool_client import ToolClient, ToolServer, named
from specchat.engine import Message, MessagePart, PartKind, Ready, Request, Tool

_CHOICES = {decision.value[0]: decision for decision in Decision}


class OfferedTools:
    """The tools that the model is offered, and their calls.

    Args:
        client: the client for them, still without servers.
        servers: the servers.
        allowed: names of tools that are called without a question.
    """

    def __init__(self, client: ToolClient, servers: Sequence[ToolServer], allowed: Sequence[str]) -> None:
        self._client = client
        self._servers = servers
        self._allowed = allowed
        self._decisions = Decisions()
        self._asks = _can_ask()

    def tools(self, ready: Ready) -> tuple[Tool, ...]:
        """Connect the servers; return all tools, or without a terminal the allowed ones.

        Raises:
            UsageError: the model cannot call tools.
            AppError: a server cannot be reached, or there is no tool of an allowed name.
        """
        if not ready.tools:
            raise UsageError(
                f"{ready.target} cannot call tools, or its chat template has no place for them: choose a model that "
                "was trained to call tools, or leave --mcp out"
            )
        self._client.add(*self._servers)
        self._decisions = Decisions(tool.name for tool in named(self._client.tools, self._allowed))
        return tuple(tool for tool in self._client.tools if self._asks or tool.name in self._decisions.by_tool)

    def results(self, request: Request, reply: Message) -> tuple[MessagePart, ...]:
        """The results of the calls of a reply to a request, which are made where they are allowed.

        Raises:
            UsageError: the model has called too often.
        """
        check_replies(request.messages)
        return tuple(result_of(call, self._result(call)) for call in reply.parts_of(PartKind.CALL))

    def _result(self, call: MessagePart) -> str:
        """The text of the result of a call that is allowed, or a sentence."""
        given = json.loads(call.text).items()
        warn("\n".join([f"the model calls {call.name}", *(f"  {key}: {json.dumps(value)}" for key, value in given)]))
        allowed = self._decisions.allows(call.name)
        if allowed is None:
            allowed = self._asks and self._decisions.take(call.name, _asked(call.name))
        return self._client.call(call.name, call.text) if allowed else DECLINED


def _asked(name: str) -> Decision:
    """The user's decision about a call; the question is repeated until it is answered."""
    while True:
        print(f"call {name}? o once, a always, n never: ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:  # the end of the input
            return Decision.NEVER
        if (choice := line.strip().lower()[:1]) in _CHOICES:
            return _CHOICES[choice]


def continued(request: Request, reply: Message, results: Sequence[MessagePart]) -> Request:
    """The request for a reply to the results of the calls in a reply."""
    messages = (*request.messages, reply, Message("user", parts=results))
    return replace(request, request_id=f"ask-{len(messages)}", messages=messages)


def _can_ask() -> bool:
    """Whether the user can be asked: input and messages are of a terminal."""
    return bool(sys.stdin and sys.stdin.isatty() and sys.stderr.isatty())


@contextmanager
def offered_tools(names: Collection[str], allowed: Sequence[str]) -> Iterator[OfferedTools | None]:
    """The tools of the named servers of the settings file, to be used while the block runs; None without names.

    Raises:
        UsageError: there is no terminal to ask on, and no tool is allowed.
        SettingsError: a server is not known, or an entry of it is wrong.
    """
    if not names:
        if allowed:
            raise UsageError("--allow-tools goes with --mcp NAME, which names a server of tools")
        yield None
        return
    if not allowed and not _can_ask():
        raise UsageError("--mcp asks before each call and needs a terminal: name the tools with --allow-tools A,B")
    servers = [tool_server(settings_file(), name) for name in dict.fromkeys(names)]
    with ToolClient() as client:
        yield OfferedTools(client, servers, allowed)
