"""How a server begins and ends: addresses, keys, limits of time, signals; and many clients at once."""

import errno
import json
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from specchat.app.server.server import bind
from tests.app.cli.commands.command import command
from tests.app.server.served import Served, chat


@pytest.mark.slow
def test_running_replies_are_finished_after_sigterm(model: Path, tmp_path: Path) -> None:
    with Served("--target", model, "--dtype", "float32", home=tmp_path) as served, served.http() as http:
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


@pytest.mark.slow
def test_a_client_that_stops_reading_keeps_its_slots_as_long_as_a_reply_may_take(model: Path, tmp_path: Path) -> None:
    """Its connection is open all the time, and full, as much is said of each of the many tokens."""
    options = ("--dtype", "float32", "--slots", 8, "--timeout", 6)
    wanted = {"n": 128, "max_tokens": 200, "drafter": "none", "logprobs": True, "top_logprobs": 20, "speculation": True}
    body = json.dumps(chat(stream=True, **wanted)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: here\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    with Served("--target", model, *options, home=tmp_path) as served, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", served.port))
        client.sendall(head + body)
        assert client.recv(12) == b"HTTP/1.1 200"
        served.wait_until_idle()
        assert served.metrics()["specchat_requests_total{reason=cancelled}"] > 0
        with served.http() as http:
            late = http.post("/v1/chat/completions", json=chat(**wanted))
        assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
        said = bytearray()
        while not said.endswith(b"\r\n0\r\n\r\n"):  # it reads again
            said += client.recv(1 << 16)
        assert b'"code":"timeout"' in said


def test_a_taken_port_is_named_before_its_server_has_loaded() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        done = command("serve", "--port", port)
    assert f"127.0.0.1:{port} cannot be served (Address already in use)" in done.sentence


def test_a_server_that_cannot_print_its_address_ends(model: Path) -> None:
    def write(_text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    done = command("serve", "--port", 0, "--target", model, "--dtype", "float32", on_write=write)
    assert done.sentence == "reading or writing data failed: No space left on device"


CLIENTS = 32
TOPICS = ("rivers", "colours", "poets", "metals", "planets", "fruits", "cities", "tools")


@pytest.mark.slow
@pytest.mark.model
def test_each_of_many_clients_gets_its_own_reply(default_model: Path, tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to(default_model.parent)
    with Served("--slots", CLIENTS, "--context", 256) as served:
        client = served.openai()
        model = client.models.list().data[0].id

        def ask(number: int, stream: bool = True) -> str:
            question = f"Name {2 + number // len(TOPICS)} {TOPICS[number % len(TOPICS)]}."
            made = client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": question}], max_tokens=24, stream=stream
            )
            if not stream:
                return made.choices[0].message.content
            return "".join(chunk.choices[0].delta.content or "" for chunk in made)

        with ThreadPoolExecutor(CLIENTS) as pool:
            together = list(pool.map(ask, range(CLIENTS)))
        assert together[::5] == [ask(number, stream=False) for number in range(0, CLIENTS, 5)]
        assert len(set(together)) > CLIENTS / 2
        served.wait_until_idle()
        assert not served.metrics().get("specchat_requests_total{reason=cancelled}")
        assert served.stop() == 0
        assert served.errors == ""
