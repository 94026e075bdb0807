"""A download that is paused and resumed, from a small hub on this machine."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from specchat.app.sources.pull import Pull, PullState
from specchat.engine import models_folder
from specchat.engine.models import ModelStore

NAME, REVISION = "someone/tiny", "1" * 40
WEIGHTS = "model.safetensors"
CHUNK = 10 * 1024 * 1024
"""What the hub's library writes at once; half of the weights is more."""


class Hub(ThreadingHTTPServer):
    """Serves one folder as the hub does; of the weights, half, until it is told to give all."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.folder = folder
        self.whole, self.half_sent = threading.Event(), threading.Event()
        self.ranges: list[str] = []
        """What was asked of the weights."""


class Answer(BaseHTTPRequestHandler):
    """One answer."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET(body=False)

    def do_GET(self, *, body: bool = True) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/"):
            files = [{"rfilename": f.name, "size": f.stat().st_size} for f in sorted(self.server.folder.iterdir())]
            tree = [{"type": "file", "path": f["rfilename"], "size": f["size"], "oid": REVISION} for f in files]
            about = tree if "/tree/" in path else {"id": NAME, "sha": REVISION, "siblings": files}
            self.answer(json.dumps(about).encode(), body=body)
            return
        name = path.rpartition("/")[2]
        if not (self.server.folder / name).is_file():
            self.send_error(404)
            return
        content = (self.server.folder / name).read_bytes()
        asked = self.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").partition("-")[0] or 0)
        if name == WEIGHTS and body:
            self.server.ranges.append(asked)
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        partial = f"bytes {start}-{len(content) - 1}/{len(content)}" if asked else ""
        self.answer(content[start:], etag, partial, body=body, slow=name == WEIGHTS)

    def answer(
        self, content: bytes, etag: str = '"-"', partial: str = "", *, body: bool = True, slow: bool = False
    ) -> None:
        self.send_response(206 if partial else 200)
        headers = {"Content-Length": str(len(content)), "ETag": etag, "X-Repo-Commit": REVISION}
        for key, value in (headers | ({"Content-Range": partial} if partial else {})).items():
            self.send_header(key, value)
        self.end_headers()
        if not body:
            return
        if slow and not self.server.whole.is_set():
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.server.half_sent.set()
            self.server.whole.wait()
            return
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@pytest.fixture
def hub(tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    served = Hub(tiny_model(hidden_size=512, intermediate_size=2048))
    threading.Thread(target=served.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{served.server_port}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    yield served
    served.whole.set()
    served.shutdown()


def until(done: Callable[[], bool], pull: Pull, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, (pull.state, pull.text)
        time.sleep(0.05)


def test_a_download_is_paused_and_goes_on_where_it_stopped(hub: Hub) -> None:
    store = ModelStore(models_folder())
    work = store.folder / ".unfinished"
    pull = Pull(NAME)
    pull.start()
    until(lambda: hub.half_sent.is_set() and arrived(work) >= CHUNK, pull)
    assert pull.running
    pull.pause()
    assert pull.state is PullState.PAUSED
    hub.whole.set()
    assert store.find("someone--tiny") is None
    pull.start()
    until(lambda: not pull.running, pull)
    assert pull.state is PullState.DONE, pull.text
    folder = store.find("someone--tiny")
    assert folder is not None
    assert (folder / WEIGHTS).read_bytes() == (hub.folder / WEIGHTS).read_bytes()
    assert hub.ranges[0] == ""
    assert int(hub.ranges[-1].removeprefix("bytes=").partition("-")[0]) >= CHUNK


def arrived(work: Path) -> int:
    return max((file.stat().st_size for file in work.rglob(f".partial/*/{WEIGHTS}")), default=0)


@pytest.mark.usefixtures("hub")
def test_a_download_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    pull = Pull(NAME)
    pull.start()
    until(lambda: not pull.running, pull)
    assert pull.state is PullState.FAILED
    assert "the hub cannot be reached" in pull.text
