"""What OpenAI's own client gets from `specchat serve`."""

import json
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import exp
from typing import Any

import openai
import pytest
from hypothesis import given, settings

from specchat.engine import Admitted, Finished, Round, from_json
from tests.app.server.served import PAGE, Served, chat
from tests.stress import TRIES
from tests.stress.fuzz_server import Attempt, drawn, fixed, send, verdict

TURN: list[Any] = [{"role": "user", "content": "the quick brown fox"}]
ENDLESS = {"0": -100}
"""A sampled reply of this model ends by chance."""


@pytest.fixture
def client(served: Served) -> openai.OpenAI:
    return served.openai()


@pytest.fixture
def served_model(client: openai.OpenAI) -> str:
    (only,) = client.models.list().data
    assert client.models.retrieve(only.id) == only
    return only.id


@pytest.fixture
def ask(client: openai.OpenAI, served_model: str) -> Callable[..., Any]:
    """Makes a chat of one turn."""
    return partial(client.chat.completions.create, model=served_model, messages=TURN)


def test_a_stream_says_what_the_whole_reply_says(ask: Callable[..., Any]) -> None:
    whole = ask(max_tokens=40)
    (choice,) = whole.choices
    assert choice.finish_reason == "length"
    assert choice.message.role == "assistant"
    assert whole.usage.completion_tokens == 40
    stream = ask(max_completion_tokens=40, stream=True, stream_options={"include_usage": True})
    first, *chunks, last, usage = stream
    assert first.choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == choice.message.content
    assert last.choices[0].finish_reason == "length"
    assert usage.choices == []
    assert (usage.usage.prompt_tokens, usage.usage.completion_tokens) == (whole.usage.prompt_tokens, 40)
    assert len({chunk.id for chunk in (first, *chunks, last, usage)}) == 1
    plain = ask(max_tokens=40, extra_body={"drafter": "none", "prompt_cache_options": {"ttl": "30m"}})
    assert plain.choices[0].message.content == choice.message.content


def test_choices_of_a_seed_differ_and_repeat(ask: Callable[..., Any]) -> None:
    def texts(n: int, seed: int = 7) -> list[str | None]:
        made = ask(max_tokens=20, n=n, seed=seed, temperature=1.2, top_p=0.95, logit_bias=ENDLESS)
        assert [choice.index for choice in made.choices] == list(range(n))
        return [choice.message.content for choice in made.choices]

    three = texts(3)
    assert len(set(three)) == 3
    assert three == texts(3)
    assert three[:1] == texts(1) != texts(1, seed=8)


def test_stop_strings_bias_and_penalties(ask: Callable[..., Any]) -> None:
    plain = ask(max_tokens=40).choices[0].message.content or ""
    stop = plain[10:13]
    for stops in (stop, ["never there", stop]):
        (choice,) = ask(max_tokens=40, stop=stops).choices
        assert choice.message.content == plain[: plain.index(stop)]
        assert choice.finish_reason == "stop"
    biased, penalised = (
        ask(max_tokens=8, logit_bias={"66": 100, "67": 99.9}, logprobs=True, frequency_penalty=penalty).choices[0]
        for penalty in (0, 1)
    )
    assert len({entry.token for entry in biased.logprobs.content}) == 1
    said = [entry.token for entry in penalised.logprobs.content]
    assert len(set(said)) == 2
    assert abs(said.count(said[0]) - 4) <= 1


def test_logprobs_are_of_the_tokens_that_were_said(ask: Callable[..., Any]) -> None:
    quick = {"temperature": 0, "logit_bias": {"277": 100}, "stop": "ick?"}  # ends with the beginning of a stop string
    for stream in (False, True):
        for options in ({"temperature": 1.0, "seed": 3}, {"temperature": 0}, quick):
            entries, text = _logprobs(ask, stream, **options)
            assert len(entries) == 30
            assert "".join(entry.token for entry in entries) == text
            assert all(bytes(entry.bytes) == entry.token.encode() for entry in entries)
            for entry in entries:
                assert len(entry.top_logprobs) == 5
                ranked = [other.logprob for other in entry.top_logprobs]
                assert ranked == sorted(ranked, reverse=True)
                assert 0 < sum(exp(each) for each in ranked) <= 1.0001
                if options["temperature"] == 0:
                    assert entry.logprob == ranked[0]
                listed = [other.logprob for other in entry.top_logprobs if other.token == entry.token]
                assert not (entry.token and entry.token.isascii()) or not listed or entry.logprob in listed


def _logprobs(ask: Callable[..., Any], stream: bool, **options: Any) -> tuple[list[Any], str]:
    made = ask(max_tokens=30, logprobs=True, top_logprobs=5, stream=stream, **{"logit_bias": ENDLESS, **options})
    if not stream:
        return made.choices[0].logprobs.content, made.choices[0].message.content
    entries, text = [], ""
    for chunk in made:
        choice = chunk.choices[0]
        entries += choice.logprobs.content if choice.logprobs else []
        text += choice.delta.content or ""
    return entries, text


def test_completions_take_texts_and_token_ids(client: openai.OpenAI, served_model: str, served: Served) -> None:
    with served.http() as http:
        ids = http.post("/tokenize", json={"prompt": "the dog"}).json()["tokens"]
        both = http.post("/tokenize", json={"prompt": "the dog", **chat()}).json()["error"]["message"]
    assert both == "the request needs either a prompt or messages: give it one of them"
    made = client.completions.create(model=served_model, prompt=["the dog", "a fox"], n=2, max_tokens=6, logprobs=2)
    assert [choice.index for choice in made.choices] == [0, 1, 2, 3]
    assert made.choices[0].text == made.choices[1].text != made.choices[2].text
    assert made.usage.completion_tokens == 24
    lists = made.choices[0].logprobs
    assert "".join(lists.tokens or []) == made.choices[0].text
    assert [len(each) in (1, 2) for each in lists.top_logprobs or []] == [True] * 6  # two tokens of one text are one
    for prompt in (ids, [ids]):
        (choice,) = client.completions.create(model=served_model, prompt=prompt, max_tokens=6).choices
        assert choice.text == made.choices[0].text
    stream = client.completions.create(model=served_model, prompt="the dog", max_tokens=6, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == made.choices[0].text
    assert (
        len(client.completions.create(model=served_model, prompt="the dog", logprobs=0).choices[0].logprobs.tokens)
        == 16
    )


def test_a_chunk_carries_its_round(served: Served, ask: Callable[..., Any]) -> None:
    before = served.metrics()
    stream = ask(max_tokens=40, stream=True, extra_body={"speculation": True, "gamma": 4})
    records, text = [], ""
    for chunk in stream:
        record = from_json(json.dumps(chunk.model_extra["speculation"]))
        said = chunk.choices[0].delta.content or ""
        assert said == (
            record.text if isinstance(record, Round) else record.tail if isinstance(record, Finished) else ""
        )
        records.append(record)
        text += said
    assert isinstance(records[0], Admitted)
    assert isinstance(records[-1], Finished)
    rounds = [record for record in records if isinstance(record, Round)]
    assert [r.number for r in rounds] == list(range(len(rounds)))
    assert any(r.accepted for r in rounds)
    whole = ask(max_tokens=40, extra_body={"speculation": True}).choices[0]
    kept = [from_json(json.dumps(each)) for each in whole.model_extra["speculation"]]
    assert "".join(r.text for r in kept if isinstance(r, Round)) == text == whole.message.content
    rounds += [record for record in kept if isinstance(record, Round)]
    after = served.metrics()

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert grown("specchat_rounds_total") == len(rounds)
    assert grown("specchat_emitted_tokens_total") == 80
    for position in (1, 2):
        tested = sum(r.tested >= position for r in rounds)
        accepted = sum(r.accepted >= position for r in rounds)
        assert grown(f"specchat_tested_total{{position={position}}}") == tested
        assert grown(f"specchat_accepted_total{{position={position}}}") == accepted
    emitted, passes = after["specchat_emitted_tokens_total"], after["specchat_rounds_total"]
    assert after["specchat_mean_emitted_length"] == pytest.approx(emitted / passes)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (chat(temperature=-1), 400, "temperature is -1: it must be from 0 (greedy) to 100"),
        (chat(temperature="hot"), 400, "temperature should be a valid number"),
        (chat(n=0), 400, "n should be greater than or equal to 1"),
        (chat(max_tokens=0), 400, "max_tokens should be greater than"),
        (chat(top_logprobs=3), 400, "top_logprobs needs logprobs: true"),
        (chat(stop=["a", ""]), 400, "stop.1: string should have at least 1 character"),
        (chat(stop=["a", "\ud800"]), 400, "stop.1 should be a valid string, unable to parse"),
        (chat(stop=["a"] * 17), 400, "stop: list should have at most 16 items"),
        (chat(gamma="x"), 400, "gamma should be a valid integer"),
        (chat(logit_bias={"the": 1}), 400, "logit_bias maps token ids to numbers"),
        (chat(logit_bias={"99999": 1}), 400, "logit-bias names token 99999 and the model has 320 tokens"),
        (chat(tools=[{"type": "function"}]), 400, "tools.0.function: field required"),
        (chat(temprature=1), 400, "'temprature' is not a parameter: leave it out"),
        (chat(drafter="oracle"), 400, "drafter 'oracle' is not available"),
        (chat(moderation={"model": "m"}), 400, "moderation is not served here"),
        (chat(model="gpt-4"), 404, "the model 'gpt-4' is not served here"),
        (chat("fox " * 400), 400, "and the context holds 256: shorten it"),
        (chat("\ud800"), 400, "half of a surrogate pair"),
        (chat("x" * 2_000_000), 413, "the body is longer than"),
        (chat(n=11), 429, "8 requests may wait and there is no room for 11 more"),
        ({"messages": []}, 400, "messages: list should have at least 1 item"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "messages.0.role should be"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages.0.content.0.type"),
        ([], 400, "the body is not a JSON object"),
        (b"{", 400, "the body is not valid JSON"),
        (b"[" * 4_000, 400, "the body is not valid JSON"),
        (b'{"messages": NaN}', 400, "the body is not valid JSON: messages is NaN"),
        (b'{"n": ' + b"9" * 5000 + b"}", 400, "the body is not valid JSON: n has more than 100 digits"),
        (b'{"temperature": 0.' + b"1" * 1_000_000 + b"}", 400, "temperature has more than 100 digits"),
        (b'{"temperature": 1, "temperature": 2}', 400, "the body gives temperature more than once"),
        ({"\ud800": 1}, 400, "the name \\ud800 has half of a surrogate pair"),
        (chat(metadata={"a": {"b\udfff": 1}}), 400, "the name metadata.a.b\\udfff has half"),
        (chat(metadata={"a": json.loads("[" * 100 + "]" * 100)}), 400, "metadata is nested more than 64 levels deep"),
        (chat([{"type": "text", "text": ""}] * 20_000), 400, "the body has more than 4096 lists and objects"),
        (chat("[{" * 20_000), 400, "and the context holds 256: shorten it"),
        (chat(metadata=dict.fromkeys(map(str, range(3000)))), 400, "has more than 2048 keys"),
        (chat(logit_bias={"x" * 10_000: None}), 400, "logit_bias.xxx"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(served: Served, body: Any, status: int, words: str) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with served.http() as http:
        reply = http.post("/v1/chat/completions", content=data)
    assert reply.status_code == status
    error = reply.json()["error"]
    assert words in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("repetition_penalty", (1e-300, 1e-38, 1e300)), ("temperature", (1e300, 10**99)), ("dry_base", (0.5,)),
        ("dry_allowed_length", (0, 1 << 40)), ("dry_penalty_last_n", (-2, 1 << 40)), ("xtc_probability", (2,)),
        ("top_p", (0, 1e300)), ("min_p", (1,)), ("top_k", (-1, 1 << 40)), ("seed", (1 << 64,)),
        ("presence_penalty", (1e300,)), ("frequency_penalty", (-3,)), ("logit_bias", ({"1": 1e300}, {"9" * 30: 1})),
        ("gamma", (99,)), ("n", (1 << 40,)), ("max_tokens", (1 << 40,)),
    ],
)  # fmt: skip
def test_a_number_out_of_range_is_refused_by_the_name_of_its_field(served: Served, name: str, values: Any) -> None:
    with served.http() as http:
        for value in values:
            reply = http.post("/v1/completions", json={"prompt": "x", "temperature": 1, name: value})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, name), reply.text


def test_extreme_numbers_in_range_are_served(served: Served) -> None:
    extremes = {
        "temperature": (5e-324, 100), "repetition_penalty": (0.01, 100), "top_p": (5e-324,), "min_p": (5e-324,),
        "dry_base": (1e300,), "dry_multiplier": (5e-324, 1e300), "xtc_threshold": (5e-324,), "top_k": (1 << 31,),
        "dry_allowed_length": (1 << 31,), "dry_penalty_last_n": (1 << 31,), "seed": (-(1 << 63), (1 << 63) - 1),
    }  # fmt: skip
    always = {"prompt": "a b a b a b", "temperature": 1e-20, "dry_multiplier": 1, "xtc_probability": 1, "max_tokens": 4}
    with served.http() as http:
        for name, values in extremes.items():
            for value in values:
                for drafter in ("none", "auto"):
                    asked = {**always, "repetition_penalty": 0.01, "drafter": drafter, "n": 2, name: value}
                    reply = http.post("/v1/completions", json=asked)
                    assert reply.status_code == 200, (name, value, reply.text)


def test_only_health_needs_no_key(served: Served) -> None:
    with served.http(Authorization="") as http:
        assert http.get("/health").json() == {"status": "ok"}
        for path in ("/metrics", "/v1/models", "/nowhere"):
            assert http.get(path).status_code == 401
        assert http.post("/v1/chat/completions", json=chat()).status_code == 401
    with served.http() as http:
        assert http.get("/nowhere").status_code == 404
        assert http.get("/v1/chat/completions").status_code == 405


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01 hello\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT there:80 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http:// HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 20_000,
        b"GET /" + b"x" * 100_000,
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n{}",
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, gzip\r\n\r\n{}",
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_in_the_same_shape(served: Served, sent: bytes) -> None:
    reply = _exchange(served.port, sent)
    assert reply.startswith(b"HTTP/1.1 400 "), reply
    assert json.loads(reply.split(b"\r\n\r\n", 1)[1])["error"]["code"] == "invalid_http"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_sends_nothing_more_gets_its_answer(served: Served, stream: bool) -> None:
    body = json.dumps(chat(max_tokens=150, stream=stream, drafter="none")).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {served.key}\r\n"
    reply = _exchange(served.port, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body, ends=True)
    assert reply.startswith(b"HTTP/1.1 200 ")
    assert b'"finish_reason":"length"' in reply
    served.wait_until_idle()
    assert _exchange(served.port, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", ends=True).endswith(b'ok"}')


def test_an_answer_is_not_lost_where_the_body_was_not_wanted(served: Served) -> None:
    for line, status in ((b"POST /health", b"405"), (b"PUT /v1/models", b"405"), (b"POST /nowhere", b"404")):
        head = line + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 1100000\r\n"
        reply = _exchange(served.port, head + b"Authorization: Bearer secret\r\n\r\n" + b"x" * 1_100_000)
        assert reply.startswith(b"HTTP/1.1 " + status), (line, reply)


def _exchange(port: int, sent: bytes, *, ends: bool = False) -> bytes:
    """All that comes back until the server closes; `ends` says that nothing more will be sent."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(sent)
        if ends:
            connection.shutdown(socket.SHUT_WR)
        reply = b""
        while more := connection.recv(4096):
            reply += more
    return reply


def test_other_names_of_the_internet_are_refused(served: Served) -> None:
    with served.http() as http:
        for path in ("/v1/models", "/metrics", "/health"):
            for host in ("rebound.example", "rebound.example.:80", "127.0.0.1.evil.example", "localhost.evil.example"):
                reply = http.get(path, headers={"Host": host})
                assert (reply.status_code, reply.json()["error"]["code"]) == (403, "host_not_allowed")
            for host in ("localhost:1", "127.0.0.1", "[::1]:80", "192.168.0.7:8000", "mypc", "nas.local", "a.example"):
                assert http.get(path, headers={"Host": host}).status_code == 200


def test_what_follows_a_request_waits_for_its_answer(served: Served) -> None:
    body = json.dumps(chat(max_tokens=20, stream=True)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.key}\r\n"
    asked = f"{head}Upgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    health = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    for first in (asked, asked.replace(b"Upgrade: h2c\r\nConnection: Upgrade\r\n", b"")):
        with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
            connection.sendall(first)
            reply = connection.recv(100)
            connection.sendall(health)
            while more := connection.recv(4096):
                reply += more
        stream, _, rest = reply.partition(b"data: [DONE]")
        assert stream.startswith(b"HTTP/1.1 200 ")
        assert b'"finish_reason":"length"' in stream
        assert b"HTTP/1.1" not in stream[8:]
        assert rest.endswith(b'{"status":"ok"}'), rest


def test_only_named_pages_may_ask(served: Served) -> None:
    with served.http(Origin="http://evil.example") as http:
        reply = http.post("/v1/chat/completions", json=chat(max_tokens=1))
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "origin_not_allowed")
    with served.http(Origin=PAGE) as http:
        assert http.get("/v1/models").headers["access-control-allow-origin"] == PAGE
    with served.http(Origin=PAGE, Authorization="") as http:
        sdk = "authorization, x-stainless-os"
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": sdk}
        assert http.options("/v1/chat/completions", headers=asked).status_code == 200
        refused = http.get("/v1/models")
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)


def test_clients_that_disconnect_free_their_slots(served: Served) -> None:
    before = served.metrics().get("specchat_requests_total{reason=cancelled}", 0.0)
    for number in range(30):
        body = json.dumps(chat(max_tokens=200, stream=number % 3 > 0, drafter="none")).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.key}\r\n"
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            if number % 3 == 1:
                connection.recv(100)  # it has begun to answer
    served.wait_until_idle()
    assert served.metrics()["specchat_requests_total{reason=cancelled}"] - before >= 10
    with served.http() as http:
        assert http.post("/v1/chat/completions", json=chat(max_tokens=1)).status_code == 200


def test_nothing_that_is_sent_breaks_it(served: Served) -> None:
    statuses: Counter[int | None] = Counter()

    def attempt_once(attempt: Attempt) -> None:
        status = send(served.port, attempt)
        assert verdict(attempt, status) is None, attempt.parts[0][:500]
        statuses[status] += 1

    for each in fixed(served.key):
        attempt_once(each)
    settings(max_examples=100 * TRIES)(given(drawn(served.key))(attempt_once))()
    assert statuses[400] > 50
    served.wait_until_idle()
