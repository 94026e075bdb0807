"""Bodies without an engine, and events of replies, for tests of the server."""

from typing import Any

from specchat.app.server.protocol import ChatBody
from specchat.app.server.requests import Defaults, requests_of
from specchat.app.settings.settings import Settings
from specchat.engine import Call, Fate, Request, Round


class ReadingEngine:
    """Reads every prompt as one token, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Request] = []

    def prompt_ids(self, request: Request) -> list[int]:
        self.asked.append(request)
        return [1]


def request_of(body: ChatBody, settings: Settings | None = None) -> tuple[Request, Request]:
    """The request of a body, and the one that reads its prompt."""
    engine: Any = ReadingEngine()
    (request,) = requests_of(body, "c", Defaults(engine, settings or Settings(), 100))
    return request, engine.asked[0]


def round_of(
    text: str = "", request: str = "r", number: int = 0, *, thinking: bool = False, calls: tuple[Call, ...] = (),
    parts: tuple[Call, ...] = (),
) -> Round:  # fmt: skip
    """A round that adds one token with this text."""
    return Round(
        request, number, 3, "none", 0, (), (), (), (), (), 0, 5, Fate.PLAIN, (), text, 0.0, 0.0, 0.0, 0.0, 1,
        thinking=(True,) if thinking else (), calls=calls, call_parts=parts,
    )  # fmt: skip
