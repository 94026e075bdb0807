"""The page that replays a chat: in a real browser, with real traces, and with what a hostile model might say."""

import html
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specchat.app.chat.trace import Trace
from specchat.app.chat.web_page import render, trace_data
from specchat.app.sanitize import escape_controls
from specchat.engine import Finished, Message, Record, Request, Round
from tests.app.cli.commands.command import command
from tests.app.recorded import TRACES, events_of_requests, replied, trace
from tests.browser import Browser, needs_browser

PAGE = Path(__file__).parents[2] / "app" / "chat" / "web_page"
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=hacked=1><!--&lt;\u2028\x1b]0;x\x07\u202e"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


def show(browser: Browser, page: str, folder: Path) -> None:
    file = folder / "page.html"
    file.write_text(page, "utf-8")
    browser.open(file.as_uri())
    assert browser.complaints() == []


def kept(records: list[Record]) -> list[str]:
    """The text of each reply of a trace."""
    return [escape_controls(replied(events).text) for events in events_of_requests(records)]


def visible(browser: Browser) -> list[str]:
    script = "return [...document.querySelectorAll('main .token:not([hidden])')].map(e => e.textContent)"
    return list(browser.run(script))


def test_the_page_is_small_and_asks_no_network() -> None:
    page = render({"title": "", "model": None, "duration": 0.0, "replies": []})
    assert len(page.encode()) < 200_000
    assert not re.search(r"https?:|src=|href=|@import|url\(", page)
    assert "default-src 'none'" in page


@needs_browser
def test_it_replays_a_trace_round_by_round(browser: Browser, tmp_path: Path) -> None:
    records = trace("sampled")
    rounds = [r for r in records if isinstance(r, Round)]
    show(browser, Trace(records).page(), tmp_path)
    everything = visible(browser)
    assert len(everything) == sum(len(list(r.tokens())) for r in rounds)
    browser.run("const at = document.getElementById('at'); at.value = 0; at.dispatchEvent(new Event('input'))")
    assert visible(browser) == []
    browser.press(".")
    first = list(rounds[0].tokens())
    assert len(visible(browser)) == len(first)
    browser.press(".", ".", ",")
    assert len(visible(browser)) == len(first) + len(list(rounds[1].tokens()))
    browser.press("x")
    looked_at = browser.run("return document.querySelector('.token.chosen').className")
    assert "rejected" in looked_at
    browser.run("const at = document.getElementById('speed'); at.value = 8; at.onchange({target: {value: 8}})")
    browser.press(" ")
    browser.wait_for("Number(document.getElementById('at').value) >= Number(document.getElementById('at').max)")
    assert visible(browser) == everything


@needs_browser
def test_nothing_a_model_says_becomes_a_page(browser: Browser, tmp_path: Path) -> None:
    records: list[Record] = []
    for record in trace("sampled"):
        if isinstance(record, Round):
            record = replace(record, pieces=tuple(HOSTILE for _ in record.pieces), last_piece=HOSTILE)
        elif isinstance(record, Request):
            record = replace(record, messages=tuple(Message(turn.role, HOSTILE) for turn in record.messages))
        elif isinstance(record, Finished):
            record = replace(record, tail=HOSTILE, message=HOSTILE)
        records.append(record)
    page = Trace(records, HOSTILE).page()
    assert page.count("</script>") == page.count("<script") == 2
    show(browser, page, tmp_path)
    for selector in ("main .token", "main .token:last-of-type", ".prompt", "#inspector"):
        browser.run("document.querySelector(arguments[0])?.click()", selector)
    assert browser.run("return window.hacked === undefined && document.images.length === 0")
    assert browser.run("return document.querySelector('.prompt').textContent") == escape_controls(HOSTILE)
    assert escape_controls(HOSTILE) in browser.run("return document.querySelector('.reply').textContent")


def test_a_notebook_shows_a_trace_in_a_frame() -> None:
    shown = Trace.read(TRACES / "sampled.jsonl")
    frame = shown._repr_html_()
    assert frame.startswith('<iframe sandbox="allow-scripts"')
    assert html.unescape(re.search(r'srcdoc="([^"]*)"', frame)[1]) == shown.page()  # type: ignore[index]


def test_each_round_is_on_its_track_in_perfetto() -> None:
    for name in ("lanes", "tree"):
        records = trace(name)
        events = json.loads(Trace(records, name).perfetto())["traceEvents"]
        requests = [r for r in records if isinstance(r, Request)]
        assert len([e for e in events if e["name"] == "thread_name"]) == len(requests)
        rounds = [e for e in events if e.get("cat") == "round"]
        assert len(rounds) == sum(isinstance(r, Round) for r in records)
        parts = [e for e in events if e["name"] in ("draft", "verify", "rest")]
        for whole in rounds:
            begin, end = whole["ts"] - 0.01, whole["ts"] + whole["dur"]
            within = {e["name"] for e in parts if e["tid"] == whole["tid"] and begin <= e["ts"] <= end}
            assert within == {"draft", "verify", "rest"}
        assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")


def test_the_data_is_the_trace(tmp_path: Path) -> None:
    for name in ("usual", "lanes"):
        data = trace_data(trace(name), name)
        texts = [
            reply["given"]
            + "".join(t for r in reply["rounds"] for t, fate, _ in r["tokens"] if fate not in ("rejected", "discarded"))
            + reply["tail"]
            for reply in data["replies"]
        ]
        assert texts == kept(trace(name))
        assert all(0 <= r["t"] <= data["duration"] for reply in data["replies"] for r in reply["rounds"])
    file = TRACES / "usual.jsonl"
    assert command("export", "--trace", file, "--out", tmp_path / "a.html").err.startswith("exported as")
    assert (tmp_path / "a.html").read_text("utf-8") == Trace.read(file).page()
    assert json.loads(command("export", "--trace", file, "--perfetto").out)["traceEvents"]
