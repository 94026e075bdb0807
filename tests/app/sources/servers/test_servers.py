"""Servers of other kinds as the engine: what each says becomes records, and what it does not say stays unknown."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from specchat.app.chat.reply import Reply
from specchat.engine.events import Admitted, Died, Event, Finished, FinishReason, Ready, Totals
from specchat.engine.round import Fate, Round
from specchat.engine.settings import Sampling
from specchat.engine.trace import from_json, to_json
from tests.app.cli.commands.command import command
from tests.app.recorded import replied
from tests.app.sources.servers import recorded as shapes
from tests.app.sources.servers.recorded import BREAK, CHAT, Recorded, answered, met

pytestmark = pytest.mark.slow

A, R, D, C, B, P, U = Fate
Stream = Sequence[Mapping[str, Any] | str]


def asked(pages: Mapping[str, Any], stream: Stream, path: str = CHAT, **changes: Any) -> tuple[list[Event], Any]:
    """The events of one reply, and the body of its request."""
    with Recorded(pages, {path: stream}) as server:
        events = answered(server.url, **changes)
        for event in events:
            assert from_json(to_json(event)) == event
        return events, server.asked[-1][1] if server.asked else None


def tokens(reply: Reply) -> list[tuple[str, Fate]]:
    return [(token.text, token.fate) for record in reply.rounds for token in record.tokens()]


def fates(events: Sequence[Event]) -> set[Fate]:
    return {fate for _, fate in tokens(replied(events))}


def listed(pages: Mapping[str, Any], model: str | None = None) -> Event:
    """What a client says about a server with these pages."""
    with Recorded(pages) as server:
        return met(server.url, model=model)


@pytest.mark.parametrize(
    ("pages", "kind", "target", "context"),
    [
        (shapes.LLAMA_CPP, "llama.cpp", "m", 1024),
        (shapes.VLLM, "vLLM", "meta/Llama", 4096),
        (shapes.SGLANG, "SGLang", "qwen", 32768),
        (shapes.LM_STUDIO, "LM Studio", "qwen-7b", 8192),
        (shapes.PLAIN, "OpenAI protocol", "gpt-x", 0),
        # whoever only says that it is one of them is taken for what it does
        ({"/v1/models": shapes.models("vllm")}, "OpenAI protocol", "m", 0),
    ],
)
def test_a_server_is_known_by_what_it_answers(pages: Mapping[str, Any], kind: str, target: str, context: int) -> None:
    ready = listed(pages)
    assert (ready.observed, ready.target, ready.context) == (kind, target, context)


def test_llama_cpp_reports_fates_while_the_reply_streams() -> None:
    sampling = Sampling(0.5, 7, min_p=0.1, repetition_penalty=1.2)
    events, body = asked(shapes.LLAMA_CPP, shapes.LLAMA_CPP_STREAM, sampling=sampling)
    assert body["timings_per_token"] is True
    assert (body["top_k"], body["min_p"], body["repeat_penalty"]) == (7, 0.1, 1.2)
    admitted = next(event for event in events if isinstance(event, Admitted))
    assert (admitted.prompt_tokens, admitted.reused_tokens) == (33, 3)
    reply = replied(events)
    assert tokens(reply) == [
        ("1", P),
        (".", A), (" Gra", A), ("", R), ("", D), ("pes", C),
        ("\n", P),
        ("2", A), (".", A), ("", A), ("😀", B),
        ("x", A), ("", R), ("", C),
    ]  # fmt: skip
    assert reply.text == "1. Grapes\n2.😀x"
    s = reply.metrics
    assert (s.tested, s.accepted, s.emitted, s.rounds) == (8, 6, 11, 5)
    assert s.alpha is None
    assert reply.figures.gain is None


def test_vllm_reports_fates_at_the_end() -> None:
    events, body = asked(shapes.VLLM, shapes.vllm_stream(shapes.VLLM_METRICS))
    assert body["logprobs"] is True
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    came = [event for event in events if isinstance(event, Round)]
    assert [record.last_fate for record in came] == [U] * 7
    reply = replied(events)
    assert tokens(reply) == [
        ("Hello", P),
        (",", A), (" how", A), ("", R), (" are", C),
        ("", R), ("", D), ("", D), (" you", C),
        (" to", A), ("day", A),
    ]  # fmt: skip
    assert reply.text == "Hello, how are you today"
    s = reply.metrics
    assert (s.unknown, s.tested, s.accepted, s.prompt_tokens) == (0, 6, 4, 20)
    assert s.position_accepted == [2, 2, 0]


SILENT = [{k: v for k, v in each.items() if k != "timings"} for each in shapes.LLAMA_CPP_STREAM[1:4]]
IN_USAGE = [*shapes.LM_STUDIO_STREAM[:-2], shapes.last_chunk(12, 4, usage=shapes.LM_STUDIO_STATS, stats={}), "[DONE]"]


@pytest.mark.parametrize(
    ("pages", "stream", "figures"),
    [
        (shapes.LLAMA_CPP, [*SILENT, shapes.chunk(None, "stop"), shapes.last_chunk(33, 4)],
         {"unknown": 3, "emitted": 4, "passes": None, "acceptance": None}),
        (shapes.VLLM, shapes.vllm_stream(None), {"passes": None}),  # not started with the option
        (shapes.VLLM, shapes.vllm_stream({"num_accepted_draft_tokens": 4, "num_draft_tokens": 9}),  # summary
         {"emitted": 7, "passes": 3, "mean_emitted_length": 7 / 3}),
        # passes without a draft lie between the steps, and where is not said
        (shapes.VLLM, shapes.vllm_stream(shapes.VLLM_METRICS | {"per_step_accepted": [2], "per_step_drafted": [3]}),
         {"tested": 3, "passes": 2}),
        (shapes.LM_STUDIO, shapes.LM_STUDIO_STREAM, {"emitted": 4, "passes": 2}),
        (shapes.LM_STUDIO, IN_USAGE, {"emitted": 4, "passes": 2}),
        (shapes.PLAIN, shapes.PLAIN_STREAM,
         {"emitted": 5, "passes": None, "mean_emitted_length": None, "acceptance": None}),
    ],
)  # fmt: skip
def test_what_a_server_does_not_account_for_stays_unknown(
    pages: Mapping[str, Any], stream: Stream, figures: dict[str, Any]
) -> None:
    events, _ = asked(pages, stream)
    assert fates(events) == {U}
    s = replied(events).metrics
    assert {name: getattr(s, name) for name in figures} == figures
    assert s.tested == figures.get("tested", 0)
    assert isinstance(events[-2], Totals)


def test_sglang_reports_sums_from_its_own_endpoint() -> None:
    events, body = asked(
        shapes.SGLANG, shapes.SGLANG_STREAM, "/generate", sampling=Sampling(0.7, top_p=0.9, seed=3), stop=("x",)
    )
    assert body["input_ids"] == [1, 2, 3]
    assert body["sampling_params"] == {
        "temperature": 0.7, "top_p": 0.9, "stop": ["x"], "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0,
        "max_new_tokens": 50, "sampling_seed": 3,
    }  # fmt: skip
    assert (replied(events).text, fates(events)) == ("Hello world", {U})
    s = replied(events).metrics
    assert (s.emitted, s.passes, s.mean_emitted_length, s.prompt_tokens, s.reused_tokens) == (6, 3, 2.0, 3, 1)
    assert (s.totals.drafted, s.totals.accepted) == (9, 3)


def test_lm_studio_reports_sums_of_a_loaded_model() -> None:
    events, body = asked(shapes.LM_STUDIO, shapes.LM_STUDIO_STREAM)
    assert body["model"] == "qwen-7b"
    totals = replied(events).metrics.totals
    assert (totals.drafted, totals.accepted) == (8, 2)


def test_any_other_server_is_plain_and_its_thinking_is_no_answer() -> None:
    events, body = asked(shapes.PLAIN, shapes.PLAIN_STREAM, sampling=Sampling(0.0))
    assert set(body) == {"model", "stream", "stream_options", "max_tokens", "temperature", "top_p", "messages"}
    reply = replied(events)
    assert (reply.thinking, reply.text, reply.thought.there) == ("Hm.", "Hi there", True)
    refused, _ = asked(shapes.PLAIN, shapes.PLAIN_STREAM, sampling=Sampling(1.0, top_k=4))
    assert refused[-1].message == "this server does not take --top-k: leave it out"


def test_text_may_contain_any_line_separator_of_unicode() -> None:
    text = "a\u2028b\u2029c\x85d"
    chunk = json.dumps(shapes.chunk(text), ensure_ascii=False)
    reply = replied(asked(shapes.PLAIN, [f"{chunk}\r", shapes.chunk(None, "stop"), "[DONE]"])[0])
    assert (reply.text, reply.reason) == (text, FinishReason.EOS)


@pytest.mark.parametrize(
    ("stream", "text", "words"),
    [
        ([*shapes.LLAMA_CPP_STREAM[:4], BREAK], "1. Gra", "before it was complete|was lost in mid-reply"),
        ([*shapes.LLAMA_CPP_STREAM[:2], {"error": {"message": "out of memory", "code": 500}}], "1", "out of memory"),
        ([*shapes.LLAMA_CPP_STREAM[:2], "{not json"], "1", "something that is not JSON"),
        ([*shapes.LLAMA_CPP_STREAM[:2], {"choices": 5}], "1", "not a chunk of a reply"),
        ([{"choices": [{"delta": {"content": 5}}]}], "", "not a chunk of a reply"),
    ],
)
def test_a_stream_that_breaks_off_keeps_what_has_come(stream: Stream, text: str, words: str) -> None:
    events, _ = asked(shapes.LLAMA_CPP, stream)
    assert replied(events).text == text
    (last,) = [event for event in events if isinstance(event, Finished)]
    assert last.reason is FinishReason.ERROR
    assert any(part in last.message for part in words.split("|"))


@pytest.mark.parametrize(
    ("pages", "model", "words"),
    [
        (shapes.PLAIN, "gpt-z", "has no model gpt-z: it has gpt-x, gpt-y"),
        ({"/v1/models": {"data": []}}, None, "has no model: load one there"),
        ({"/v1/models": "<html>hello</html>"}, None, "is not a server of the OpenAI protocol"),
        ({"/v1/models": {"data": [5]}}, None, "is not a server of the OpenAI protocol"),
    ],
)
def test_an_unusable_server_is_named(pages: Mapping[str, Any], model: str | None, words: str) -> None:
    died = listed(pages, model)
    assert isinstance(died, Died)
    assert words in died.message


@pytest.mark.parametrize(
    ("pages", "stream"),
    [
        (shapes.LLAMA_CPP, [shapes.chunk("a", **shapes.timings(1 << 39, 1 << 39, 1 << 38))]),
        (shapes.VLLM, [shapes.chunk("a", usage=shapes.usage(1, 1 << 39))]),
        (shapes.VLLM, shapes.vllm_stream({"per_step_accepted": [1 << 39], "per_step_drafted": [1 << 39]})),
        (shapes.PLAIN, [shapes.chunk("a", usage="many"), shapes.last_chunk(-5, 1 << 62)]),
    ],
)
def test_counts_beyond_reason_take_no_memory(pages: Mapping[str, Any], stream: Stream) -> None:
    reply = replied(asked(pages, stream)[0])
    assert len(reply.rounds) < 5000
    assert reply.text.startswith(("a", "Hello"))


@pytest.mark.parametrize(
    ("page", "words"),
    [("Internal error", "Internal error"), ({"error": None}, "status 500")],
)
def test_a_refusal_of_any_form_ends_the_reply(page: Any, words: str) -> None:
    body = json.dumps(page)
    events, _ = asked({**shapes.PLAIN, CHAT: (500, body)}, [], "/elsewhere")
    assert words in events[-1].message


@pytest.mark.parametrize("free", [(), ("/v1/models",)], ids=["no path", "the list"])
def test_a_key_is_sent_and_a_wrong_one_named(free: Sequence[str]) -> None:
    with Recorded(shapes.LLAMA_CPP, {CHAT: shapes.LLAMA_CPP_STREAM}, "right", free) as server:
        assert isinstance(met(server.url, "right"), Ready)
        died = met(server.url, "wrong")
    assert isinstance(died, Died)
    assert "refuses the key: Invalid API Key (put the right one into SPECCHAT_API_KEY)" in died.message


def test_ask_prints_what_a_server_says_and_keeps_what_has_come() -> None:
    with Recorded(shapes.LM_STUDIO, {CHAT: shapes.LM_STUDIO_STREAM}) as server:
        asked = ("ask", "Hello?", "--attach", server.url)
        assert command(*asked, "--target", "qwen-idle").out == "Hi there!\n"
        assert server.asked[-1][1]["model"] == "qwen-idle"
        values = json.loads(command(*asked, "--json").out)
    names = ("text", "token_ids", "tokens", "prompt_tokens", "rounds", "tested", "accepted", "observed")
    assert [values[name] for name in names] == ["Hi there!", [], 4, 12, 2, None, 2, "LM Studio"]
    assert "gamma" not in values
    with Recorded(
        shapes.LLAMA_CPP, {CHAT: [*shapes.LLAMA_CPP_STREAM[:6], {"error": {"message": "no memory"}}]}
    ) as server:
        broken = command("ask", "Hello?", "--attach", server.url, "--save")
        assert (broken.code, broken.out, broken.err) == (2, "1. Grapes\n", "specchat: no memory\n")
    assert "1. Grapes" in command("export").out
    refused = command("--side-by-side", "--attach", server.url, "--right", "none")
    assert "--right contradicts --attach: the server is the right lane" in refused.sentence
