"""Chromium without a window, by the WebDriver protocol (https://www.w3.org/TR/webdriver2/), for tests of pages."""

import base64
import shutil
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2
import pytest

from tests.waiting import PATIENCE_S, until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs Chromium and its driver (Debian: chromium, chromium-driver)"
)
CONTROL = "\ue009"


class Browser:
    """One window of `width` by `height` pixels."""

    def __init__(self, width: int = 1280, height: int = 800, *, light: bool = False) -> None:
        assert DRIVER is not None
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._driver = subprocess.Popen(
            [DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._http = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S)
        self._await_driver()
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"]
        arguments += [f"--window-size={width},{height}"]
        preferences = {"prefs": {}, "args": arguments, "binary": CHROMIUM}
        wanted = {
            "alwaysMatch": {
                "browserName": "chrome", "goog:chromeOptions": preferences, "goog:loggingPrefs": {"browser": "ALL"},
            }
        }  # fmt: skip
        made = self._http.post("/session", json={"capabilities": wanted}).json()["value"]
        self._session = f"/session/{made['sessionId']}"
        scheme = "light" if light else "dark"
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("goog/cdp/execute", cmd="Emulation.setEmulatedMedia", params={"features": features})

    def open(self, url: str) -> None:
        """Go to a page, and wait until it has been read."""
        self._call("url", url=url)

    def run(self, script: str, *arguments: object) -> Any:
        """What a function body returns in the page."""
        return self._call("execute/sync", script=script, args=list(arguments))

    def wait_for(self, condition: str) -> Any:
        """Until an expression is true in the page."""
        return until(lambda: self.run(f"return {condition}"))

    def press(self, *keys: str, control: bool = False) -> None:
        """Press keys, one after the other; with `control`, while that key is down."""
        steps = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        if control:
            steps = [{"type": "keyDown", "value": CONTROL}, *steps, {"type": "keyUp", "value": CONTROL}]
        self._call("actions", actions=[{"type": "key", "id": "keys", "actions": steps}])

    def picture(self, path: Path) -> None:
        """Write what the window shows as a PNG file."""
        path.write_bytes(base64.b64decode(self._call("screenshot")))

    def complaints(self) -> list[str]:
        """What the page has written to the console since the last time."""
        return [entry["message"] for entry in self._call("se/log", type="browser")]

    def _call(self, command: str, **values: Any) -> Any:
        """Send a command; commands that only query have no values."""
        method = "POST" if values else "GET"
        reply = self._http.request(method, f"{self._session}/{command}", json=values or None).json()["value"]
        assert not (isinstance(reply, dict) and "error" in reply), reply
        return reply

    def _await_driver(self) -> None:
        def is_ready() -> bool:
            with suppress(httpx2.TransportError):
                return bool(self._http.get("/status").json()["value"]["ready"])
            return False

        until(is_ready)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self._http.delete(self._session)
        finally:
            self._http.close()
            self._driver.terminate()
            self._driver.wait(PATIENCE_S)
