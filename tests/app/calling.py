"""The app with an MCP server and a recorded engine whose first replies call tools."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from specchat.app.ui.screens.calls import CallScreen
from specchat.engine import Call, Finished, FinishReason, Ready, Record, Request, Round
from tests.app.recorded import trace
from tests.app.stage import Stage
from tests.waiting import until

SCRIPT = Path(__file__).parent / "tool_server.py"
PARIS = Call("call00001", "weather", '{"city": "Paris"}')
NOTE = "Compare it with the forecast of yesterday, and say which of both was right about the wind.\nThen take the mean."
FORECAST = Call(
    "call00002",
    "forecast",
    json.dumps({"city": "Lisbon", "days": 12, "hourly": False, "stations": ["LIS", "Sintra"], "note": NOTE}),
)


def calling(*replies: tuple[Call, ...]) -> list[Record]:
    """A trace in which each of these replies ends with its calls and without text; a reply without calls is a text."""
    records = trace()
    ready = next(record for record in records if isinstance(record, Ready))
    made: list[Record] = [replace(ready, tools=True)]
    request = next(record for record in records if isinstance(record, Request))
    events = [record for record in records if getattr(record, "request_id", None) == request.request_id]
    for number, calls in enumerate(replies):
        kept = [e for e in events if not (calls and isinstance(e, Round))]
        told = [replace(e, calls=calls, reason=FinishReason.EOS) if isinstance(e, Finished) else e for e in kept]
        made += [replace(e, request_id=f"r{number}") for e in told]
    return made


@contextmanager
def served() -> Iterator[str]:
    """The address of a server of `tool_server.py`, which runs meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    command, quiet = [sys.executable, str(SCRIPT), str(port)], subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet) as process:
        try:
            until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.kill()


class CallingStage(Stage):
    """The app with a settings file that names the server of `tool_server.py`, as `here`.

    Args:
        folder: of the store and the settings file.
        replies: as for `calling`.
        url: of a running server; by default the app starts one.
    """

    def __init__(self, folder: Path, *replies: tuple[Call, ...], url: str = "", **settings: object) -> None:
        file = folder / "settings.toml"
        entry = {"url": url} if url else {"command": sys.executable, "args": [str(SCRIPT)]}
        lines = (f"{key} = {json.dumps(value)}\n" for key, value in {**entry, "time_limit": 60}.items())
        file.write_text("[mcp.here]\n" + "".join(lines))
        super().__init__(folder, records=calling(*replies), file=file, **settings)

    @property
    def asked(self) -> CallScreen | None:
        """The open dialog about a call."""
        return self.app.screen if isinstance(self.app.screen, CallScreen) else None

    @property
    def results(self) -> list[str]:
        """The results in the chat on screen."""
        return [result.text for prompt in self.app.chat_screen.conversation.prompts for result in prompt.results]
