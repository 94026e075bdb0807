"""A small hub on this machine: serves folders as repositories, by the protocol of the Hugging Face hub."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

REVISION = "1" * 40


class Hub(ThreadingHTTPServer):
    """Serves repositories; of large files only the first half, until it is told to give all."""

    daemon_threads = True

    def __init__(self, **repositories: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.repositories = {name.replace("__", "/"): folder for name, folder in repositories.items()}
        self.whole, self.half_sent = threading.Event(), threading.Event()
        self.whole.set()
        self.cut = False
        """Whether a connection is closed after the half, rather than kept waiting."""
        self.gated = False
        """Whether files need the token `secret`."""
        self.wrong_hash = False
        self.asked: list[tuple[str, str]] = []
        """File and range of each request for the content of a file."""

    @property
    def url(self) -> str:
        """Its endpoint."""
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Context manager that answers requests until its end."""
    threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield hub
    finally:
        hub.whole.set()
        hub.shutdown()


def use(hub: Hub, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Have huggingface_hub in this process use it; the library has read these constants from the environment."""
    constants = {
        "ENDPOINT": hub.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(cache),
        "DOWNLOAD_CHUNK_SIZE": 4096,
        "HF_HUB_DISABLE_XET": True,
    }
    for name, value in constants.items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    monkeypatch.delenv("HF_TOKEN", raising=False)


class Answer(BaseHTTPRequestHandler):
    """One answer."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET(body=False)

    def do_GET(self, *, body: bool = True) -> None:
        path = self.path.partition("?")[0].removeprefix("/api/models")
        name = next((name for name in self.server.repositories if path.startswith(f"/{name}")), None)
        if name is None:
            self.refuse(404, "RepoNotFound")
        elif self.path.startswith("/api/models"):
            files = [self.about(file) for file in sorted(self.server.repositories[name].iterdir()) if file.is_file()]
            tree = [{"type": "file", "path": f["rfilename"], "size": f["size"], "oid": REVISION} for f in files]
            found = tree if "/tree/" in path else {"id": name, "sha": REVISION, "siblings": files}
            self.answer(json.dumps(found).encode(), body=body)
        elif self.server.gated and self.headers.get("Authorization") != "Bearer secret":
            self.refuse(401, "GatedRepo")
        else:
            self.send(self.server.repositories[name] / path.rpartition("/")[2], body=body)

    def about(self, file: Path) -> dict[str, object]:
        """Entry of a file in the list of a repository."""
        found: dict[str, object] = {"rfilename": file.name, "size": file.stat().st_size}
        if file.suffix in (".safetensors", ".gguf"):
            content = b"other" if self.server.wrong_hash else file.read_bytes()
            sha256 = hashlib.sha256(content).hexdigest()
            found["lfs"] = {"sha256": sha256, "size": file.stat().st_size, "pointerSize": 134}
        return found

    def send(self, file: Path, *, body: bool) -> None:
        """Send a file, from the first byte that is asked for."""
        if not file.is_file():
            self.refuse(404, "EntryNotFound")
            return
        content, asked = file.read_bytes(), self.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").partition("-")[0] or 0)
        if body:
            self.server.asked.append((file.name, asked))
        partial = f"bytes {start}-{len(content) - 1}/{len(content)}" if asked else ""
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        self.answer(content[start:], etag, partial, body=body, slow=file.suffix in (".safetensors", ".gguf"))

    def refuse(self, status: int, code: str) -> None:
        """Send an error as the hub does."""
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

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
            if self.server.cut:
                self.close_connection = True
                return
            self.server.whole.wait(PATIENCE_S)
            return
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""
