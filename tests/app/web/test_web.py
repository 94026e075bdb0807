"""`specchat web` in a real browser: ask, see colours, fork, leave; who is not let in, and what the page is given."""

import asyncio
import base64
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import aiohttp
import httpx2
import pytest

from specchat.app.paths import database_file
from specchat.app.storage.store import Store
from specchat.app.ui.themes import FATES_ON_DARK
from tests.app.sources.servers import recorded as shapes
from tests.app.sources.servers.recorded import CHAT, Recorded
from tests.browser import Browser, needs_browser
from tests.waiting import PATIENCE_S, until

ENTER = "\ue007"


TRANSCRIPT = (270, 55, 600, 420)
"""The part of the window with the replies: left, top, width, height in pixels."""


@contextmanager
def opened(*arguments: object, home: Path, key: str = "") -> Iterator[str]:
    """The address of a running `specchat web`."""
    environment = {**os.environ, "SPECCHAT_HOME": str(home), "SPECCHAT_WEB_KEY": key}
    command = [sys.executable, "-m", "specchat", "web", "--port", "0", *map(str, arguments)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().split(": ", 1)[1].split("/?")[0].strip().rstrip("/")
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


def colours(browser: Browser, picture: Path) -> set[tuple[int, int, int]]:
    """The colours of the part of the window where replies are drawn."""
    browser.picture(picture)
    data = base64.b64encode(picture.read_bytes()).decode()
    browser.run(
        "window.seen = null; const image = new Image(); image.onload = () => {"
        "const canvas = document.createElement('canvas'); canvas.width = image.width; canvas.height = image.height;"
        "const context = canvas.getContext('2d'); context.drawImage(image, 0, 0);"
        "const data = context.getImageData(...arguments[1]).data; const found = new Set();"
        "for (let i = 0; i < data.length; i += 4) found.add(data.slice(i, i + 3).join());"
        "window.seen = [...found].map(each => each.split(',').map(Number)); };"
        "image.src = 'data:image/png;base64,' + arguments[0]",
        data,
        TRANSCRIPT,
    )
    return {(r, g, b) for r, g, b in browser.wait_for("window.seen")}


def shows(seen: set[tuple[int, int, int]], fate: str) -> bool:
    wanted = bytes.fromhex(FATES_ON_DARK[f"fate-{fate}"][1:])
    return any(max(abs(a - b) for a, b in zip(colour, wanted, strict=True)) < 12 for colour in seen)


@needs_browser
@pytest.mark.slow
def test_ask_see_colours_fork_and_leave(tmp_path: Path) -> None:
    with (
        Recorded(shapes.LLAMA_CPP, {CHAT: shapes.LLAMA_CPP_STREAM}) as server,
        opened("--attach", server.url, home=tmp_path) as url,
        Browser() as browser,
    ):
        browser.open(url)
        browser.wait_for("document.body.classList.contains('-first-byte')")
        until(lambda: shows(colours(browser, tmp_path / "begin.png"), "accepted"))  # the wordmark
        assert browser.run("return document.activeElement.matches('.xterm-helper-textarea')")  # without a click
        browser.press(*"Hi", ENTER)

        def chats() -> list[str]:
            store = Store(database_file())
            replies = [m.content for chat in store.chats() for m in store.messages(chat.id) if m.role == "assistant"]
            store.close()
            return replies

        until(lambda: chats() == ["1. Grapes\n2.😀x"])
        until(lambda: shows(colours(browser, tmp_path / "asked.png"), "correction"))
        seen = colours(browser, tmp_path / "asked.png")
        assert all(shows(seen, fate) for fate in ("accepted", "correction", "bonus", "plain"))
        browser.press(*"/fork 1", ENTER)
        until(lambda: len(chats()) == 2)
        browser.picture(tmp_path / "forked.png")
        browser.press("q", control=True)
        browser.wait_for("document.body.classList.contains('-closed')")


def test_who_is_not_let_in(tmp_path: Path) -> None:
    with opened(home=tmp_path, key="se cr+t/==") as url, httpx2.Client(base_url=url) as visitor:
        assert visitor.get("/").status_code == 401
        assert visitor.get("/ws").status_code == 401
        assert visitor.get("/static/js/textual.js").status_code == 401
        assert visitor.get("/", params={"key": "wrong"}).status_code == 401
        for asked in ("/?key=se cr+t/==", "/?key=se+cr%2Bt/%3D%3D", "/?key=se%20cr%2Bt%2F%3D%3D"):
            visitor.cookies.clear()
            entered = visitor.get(asked)
            assert entered.status_code == 302
        assert {"HttpOnly", "SameSite=Strict"} <= set(entered.headers["set-cookie"].split("; "))
        page = visitor.get("/").text
        assert "/static/js/textual.js" in page
        assert "http:" not in page.replace('"https:"', "")
        assert visitor.get("/ws", headers={"origin": "http://elsewhere.example"}).status_code == 403
    with opened(home=tmp_path) as url, httpx2.Client(base_url=url) as visitor:
        assert visitor.get("/").status_code == 200
        assert visitor.get("/", headers={"host": "rebound.example"}).status_code == 403
        for path in ("/", "/nowhere", "/static/js/textual.js"):  # no other page may show it inside itself
            headers = visitor.get(path).headers
            assert headers["content-security-policy"] == "frame-ancestors 'none'"
            assert headers["x-frame-options"] == "DENY"
        assert visitor.get("/ws", headers={"origin": "http://elsewhere.example"}).status_code == 403


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes of Linux")
def test_a_window_has_limits_and_its_app_ends_with_it(tmp_path: Path) -> None:
    def environments() -> list[dict[str, str]]:
        """Processes of the apps that run with the chats of this home."""
        found = []
        for file in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                values = dict(each.split("=", 1) for each in file.read_text().split("\0") if "=" in each)
                if values.get("SPECCHAT_HOME") == str(tmp_path) and "TEXTUAL_DRIVER" in values:
                    found.append(values)
        return found

    async def visit(url: str, *messages: str) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"{url}/ws?width=99999999&height=9999") as page,
        ):
            await page.receive(PATIENCE_S)
            assert [(each["COLUMNS"], each["ROWS"]) for each in environments()] == [("1000", "500")]
            for message in messages:
                await page.send_str(message)

    with opened("--attach", "127.0.0.1:9", home=tmp_path) as url:
        asyncio.run(visit(url, '["resize", {"width": 99999999, "height": -5}]'))
        until(lambda: not environments())
        asyncio.run(visit(url, '["resize", {"width": "x"}]', "{}"))
        until(lambda: not environments())
