"""The options of `specchat web` reach the app of each page."""

import shlex
from types import SimpleNamespace

import pytest

from specchat.app.cli.command_line import execute
from specchat.app.web import server


def test_options_reach_the_page_as_it_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[str] = []

    def web_server(command: str, *_: object) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(run=lambda bound: bound.close())

    monkeypatch.setattr(server, "WebServer", web_server)
    execute(["web", "--port", "0", "--no-thinking", "--top-k", "3"])
    assert shlex.split(commands[0])[3:] == ["--no-thinking", "--top-k=3"]
    execute(["web", "--port", "0", "--thinking"])
    assert shlex.split(commands[1])[3:] == ["--thinking"]
