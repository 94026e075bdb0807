"""A running `specchat serve` as the engine: the same records, the same text, and sentences for what goes wrong."""

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specchat.app.sources.attached import AttachedEngine
from specchat.engine import Engine, EngineConfig, EngineError, Outbox, Round, read_trace
from specchat.engine.events import Admitted, Died, Event, Finished, FinishReason, Ready
from specchat.engine.request import Message, Request
from specchat.engine.settings import Sampling
from tests.app.cli.commands.command import command
from tests.app.server.served import Served, chat
from tests.app.sources.servers.recorded import CHAT, QUEUE, Recorded, first, met
from tests.engine.tiny import ended, run_together

ASKED = (Message("user", "the quick brown fox"),)


@pytest.fixture
def attached(served: Served) -> Iterator[AttachedEngine]:
    engine = AttachedEngine(served.url + "/v1", served.key)
    yield engine
    engine.close()


def test_a_server_gives_the_records_that_an_engine_here_gives(attached: AttachedEngine, model: Path) -> None:
    requests = [
        Request("greedy", ASKED, max_tokens=40, gamma=4),
        Request("sampled", ASKED, sampling=Sampling(1.0, 20, seed=5), max_tokens=40, gamma=3, detail=4),
        Request("text", prompt="the dog", max_tokens=10, gamma=2, stop=("zzz",)),
        Request("ids", prompt_ids=(66, 67, 68), max_tokens=10, gamma=0),
    ]
    there = run_together(attached, requests)
    ready = first(attached)
    assert (ready.slots, ready.device) == (2, "cpu")
    engine = Engine(EngineConfig(str(model), dtype="float32"))
    engine.start()
    here = run_together(engine, requests)
    engine.close()

    def decisions(events: list[Event]) -> list[tuple[object, ...]]:
        rounds = [e for e in events if isinstance(e, Round)]
        return [(r.request_id, r.number, r.drafted, r.accepted, r.emitted, r.pieces, len(r.detail)) for r in rounds]

    for ours, theirs in zip(here, there, strict=True):
        assert decisions(theirs) == decisions(ours)
        assert isinstance(theirs[0], Admitted)
        assert theirs[-1].reason is ours[-1].reason  # type: ignore[union-attr]


def test_a_cancelled_reply_frees_its_slot(attached: AttachedEngine, served: Served) -> None:
    box = Outbox()
    attached.submit(Request("long", ASKED, max_tokens=200, drafter="none"), box)
    while not isinstance(box.get(60), Admitted):
        pass
    with pytest.raises(EngineError, match="has not ended yet"):
        attached.submit(Request("long", ASKED), box)
    attached.cancel("long")
    last = ended(box)[-1]
    assert last.reason is FinishReason.CANCELLED
    served.wait_until_idle()


def test_a_reply_that_waits_at_the_server_is_cancelled_at_once() -> None:
    """Its server never answers; it is left, and the id is free again."""
    with Recorded({"/v1/models": {"data": [{"id": "m"}]}}, {CHAT: [QUEUE]}) as server:
        attached = AttachedEngine(server.url)
        for _ in range(2):
            box = Outbox()
            attached.submit(Request("waits", ASKED), box)
            while not server.asked:
                time.sleep(0.01)
            server.asked.clear()
            attached.cancel("waits")
            (last,) = ended(box)
            assert (last.reason, last.message) == (FinishReason.CANCELLED, "")
            assert server.left.get(timeout=60) == CHAT
        attached.close()


def test_prompts_are_counted_and_turns_that_do_not_fit_are_left_out_or_said(
    attached: AttachedEngine, served: Served
) -> None:
    ready = first(attached)
    attached.count(ASKED)
    counted = attached.outbox.get(60)
    with served.http() as http:
        made = http.post("/v1/chat/completions", json=chat(ASKED[0].content, max_tokens=1)).json()
    assert counted.tokens == made["usage"]["prompt_tokens"]
    turns = [Message(role, f"{role} says the quick brown fox") for role in ("user", "assistant")] * ready.context
    messages = (*turns[: ready.context], *ASKED)
    box = Outbox()
    attached.submit(Request("full", messages, max_tokens=4, when_full="drop-oldest"), box)
    admitted = ended(box)[0]
    assert admitted.left_out == tuple(range(len(admitted.left_out)))
    assert 0 < len(admitted.left_out) < len(messages)
    assert admitted.prompt_tokens <= ready.context - 4
    ((last,),) = run_together(attached, [Request("r", (Message("user", "fox " * 400),))])
    assert (last.reason, "and the context holds 256" in last.message) == (FinishReason.ERROR, True)


def test_a_pause_holds_rounds_back(attached: AttachedEngine) -> None:
    attached.pause()
    attached.submit(Request("held", ASKED, max_tokens=5, gamma=0))
    while attached._streams:
        time.sleep(0.02)
    assert attached.drain() == []
    attached.step()
    (given,) = [event for event in attached.drain() if isinstance(event, Round)]
    assert given.number == 0
    assert attached.drain() == []
    attached.resume()
    rest = attached.drain()
    while not rest or not isinstance(rest[-1], Finished):
        time.sleep(0.02)
        rest += attached.drain()
    assert [event.number for event in rest if isinstance(event, Round)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request("r", ASKED, sampling=Sampling(lenience=0.5)), "leave out --lenience"),
        (Request("r", ASKED, reply_ids=(5,)), "cannot be given the beginning of a reply"),
    ],
)
def test_what_the_protocol_cannot_carry_is_refused(attached: AttachedEngine, request_: Request, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        attached.submit(request_)


def test_a_wrong_key_and_a_missing_server_are_named(served: Served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    for url, key, words in (
        (served.url, "wrong", "the key is missing or wrong"),
        (f"127.0.0.1:{port}", None, f"http://127.0.0.1:{port} cannot be reached"),
        ("http://a..b:1", None, "http://a..b:1 cannot be reached"),
    ):
        died = met(url, key)
        assert isinstance(died, Died)
        assert words in died.message
    for address in ("ftp://x", "http://", "http://x:99999", "http://x/other", "http://[::1"):
        with pytest.raises(EngineError, match="is not the address of a server"):
            AttachedEngine(address)


@pytest.mark.parametrize(
    ("variables", "address", "key", "sentence"),
    [
        ({"ALL_PROXY": "ftp://x:1"}, "http://localhost:1", None, "localhost:1 cannot be used (Unknown scheme"),
        ({"HTTP_PROXY": "foo:bar"}, "http://localhost:1", None, "cannot be used (Invalid port: 'bar')"),
        ({"SSL_CERT_FILE": "/nonexistent"}, "http://localhost:1", None, "No such file"),
        ({}, "http://☃-:1", None, "cannot be used (Invalid IDNA hostname"),
        ({}, "http://localhost:1", "schlüssel", "the key in SPECCHAT_API_KEY has characters"),
    ],
)
def test_what_hinders_a_connection_is_named(
    variables: dict[str, str], address: str, key: str | None, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(EngineError, match=re.escape(sentence)):
        AttachedEngine(address, key)


def test_ask_prints_its_replies(served: Served, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECCHAT_API_KEY", f"{served.key}\n")
    question = ("ask", "the quick brown fox", "--max-tokens", 30, "--gamma", 4)  # auto drafts nothing on a busy machine
    here = command(*question, "--target", model, "--dtype", "float32")
    there = command(*question, "--attach", served.url, "--trace", tmp_path / "trace.jsonl")
    assert (there.code, there.out, there.err) == (0, here.out, "")
    records = list(read_trace(tmp_path / "trace.jsonl"))
    assert [type(record) for record in records[:2]] == [Ready, Request]
    figures = json.loads(command(*question, "--attach", served.url, "--json").out)
    assert figures["text"] == here.out.removesuffix("\n")
    assert figures["tested"] >= figures["accepted"] > 0
    refused = command(*question, "--attach", served.url, "--slots", 2)
    assert "--slots contradicts --attach" in refused.sentence
    absent = command(*question, "--attach", served.url, "--target", "gpt-z")
    assert f"has no model gpt-z: it has {model.name}" in absent.sentence
