"""How a server begins and ends: addresses, keys, limits of time, signals."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.cli.commands.command import command
from tests.app.server.served import Served, chat


@pytest.mark.slow
def test_running_replies_are_finished_after_sigterm(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    model = tiny_model(eos_token_id=0)
    options = ("--dtype", "float32", "--slots", 1, "--timeout", 4)
    with Served("--target", model, *options, home=tmp_path) as served, served.http() as http:
        late = http.post("/v1/chat/completions", json=chat(n=100, max_tokens=200, drafter="none"))
        assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
        served.wait_until_idle()
        with http.stream("POST", "/v1/chat/completions", json=chat(max_tokens=60, stream=True)) as reply:
            lines = reply.iter_lines()
            assert next(lines).startswith("data: ")
            served.signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert served.process.wait(60) == 0
        assert served.errors == ""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", served.port))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--host", "0.0.0.0"), "--host 0.0.0.0 lets other machines in: give --api-key (or SPECCHAT_API_KEY) as well"),
        (("--host", "example.org"), "--host example.org lets other machines in"),
        (("--api-key", "schlüssel"), "--api-key has characters that no header can carry"),
        (("--host", "256.1.1.1", "--api-key", "k"), "256.1.1.1:8000 cannot be served"),
        (("--slots", "0"), "slots is 0: it must be at least 1"),
    ],
)
def test_what_cannot_be_served_is_said_before_anything_is_loaded(
    arguments: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    assert words in command("serve", *arguments).sentence


def test_a_taken_port_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = command("serve", "--port", port)
    assert f"127.0.0.1:{port} cannot be served (Address already in use)" in done.sentence


def test_other_commands_do_not_pay_for_the_server() -> None:
    script = (
        "import sys, specchat.app.cli.command_line;"
        "print(sorted({'uvicorn', 'starlette', 'prometheus_client', 'httpx2', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
