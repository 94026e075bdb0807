"""`specchat ask` on a model of random weights, also with beams: what is printed, and what is refused."""

import json
import os
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specchat.app.sanitize import escape_controls
from specchat.engine import Admitted, EngineError, Message, Metrics, Ready, Request, Round, read_trace, size_text
from tests.app.cli.commands.command import Done, command
from tests.app.sources.servers.recorded import CHAT, PLAIN, Recorded, chunk
from tests.failing import fails
from tests.hub import Hub, serving, use

KEYS = [
    "text", "thinking", "token_ids", "prompt_tokens", "finish_reason", "rounds", "tested", "accepted", "tau",
    "mean_emitted_length", "tokens_per_second", "time_to_first_token_s", "seconds", "drafter", "gamma", "sampling",
    "lossless", "device", "dtype",
]  # fmt: skip


def test_json_is_one_object_whose_figures_agree(ask: Callable[..., Done]) -> None:
    done = ask("the quick brown fox", "--json", "--max-tokens", 60)
    assert (done.code, done.err) == (0, "")
    values = json.loads(done.out)
    assert list(values) == KEYS
    assert done.out.count("\n") == 1
    assert len(values["token_ids"]) == 60
    assert values["finish_reason"] == "length"
    assert 0 <= values["accepted"] <= values["tested"]
    assert values["mean_emitted_length"] == values["tau"] == pytest.approx(60 / values["rounds"])
    assert values["tokens_per_second"] >= 60 / values["seconds"]
    assert 0 < values["time_to_first_token_s"] < values["seconds"]
    assert [values[name] for name in ("drafter", "gamma", "device", "dtype")] == ["suffix", "auto", "cpu", "float32"]


def test_a_download_is_sized(tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("ask", "the", "--max-tokens", 2, "--target", "someone/tiny", "--dtype", "float32")
    with serving(Hub(someone__tiny=tiny_model())) as hub:
        use(hub, monkeypatch, tmp_path / "no-hub-cache")
        done = command(*asked)
    size = sum(file.stat().st_size for file in hub.repositories["someone/tiny"].iterdir())
    assert done.err == f"specchat: downloading someone/tiny: {size_text(size)}\n"
    assert done.code == 0
    assert command(*asked).err == ""


@pytest.mark.parametrize(
    ("options", "replies"),
    [
        (("--schema", "schema"), {'{"good": true}', '{"good": false}'}),
        (("--regex", "[ab]{3}!"), {f"{a}{b}{c}!" for a in "ab" for b in "ab" for c in "ab"}),
        (("--grammar", "grammar"), {"yes.", "no."}),
        (("--choice", "one", "--choice", "two"), {"one", "two"}),
    ],
)
def test_a_reply_follows_what_is_stated(
    ask: Callable[..., Done], tmp_path: Path, options: tuple[str, ...], replies: set[str]
) -> None:
    form = {"type": "object", "properties": {"good": {"type": "boolean"}}, "required": ["good"]}
    (tmp_path / "schema").write_text(json.dumps(form | {"additionalProperties": False}))
    (tmp_path / "grammar").write_text('root ::= ("yes" | "no") "."')
    stated = [tmp_path / each if (tmp_path / each).is_file() else each for each in options]
    done = ask("Is it good?", *stated, "--max-tokens", 60)
    assert (done.code, done.out.strip() in replies) == (0, True), done


def test_what_a_reply_cannot_follow_is_refused(ask: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "schema").write_text("{")
    (tmp_path / "binary").write_bytes(b"\x89PNG\0\0")
    for options, told in {
        ("--schema", tmp_path / "schema"): "the JSON schema is not JSON",
        ("--schema", tmp_path / "binary"): f"{tmp_path / 'binary'} is not a text file: only text can be read\n",
        ("--grammar", tmp_path / "none"): f"{tmp_path / 'none'} cannot be read: No such file or directory",
        ("--schema", '{"type":"object"}'): 'a file is wanted, not \'{"type":"object"}\': name one',
        ("--schema", ""): "a file is wanted, not '': name one",
        ("--regex", "("): "the regular expression cannot be used: unclosed group",
        ("--json-object", "--choice", "a"): "a reply follows one of --schema, --json-object",
    }.items():
        done = ask("the", *options)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"specchat: {told}")


@pytest.mark.parametrize("text", ["Hi there", ""])
def test_a_reply_that_fails_keeps_its_text(text: str) -> None:
    with Recorded(PLAIN, {CHAT: [*([chunk(text)] * bool(text)), {"error": {"message": "no memory"}}]}) as server:
        plain = command("ask", "hi", "--attach", server.url)
        whole = command("ask", "hi", "--attach", server.url, "--json")
    assert (plain.code, plain.out, plain.err) == (2, text and f"{text}\n", "specchat: no memory\n")
    assert (whole.code, whole.err) == (2, plain.err)
    found = [(values["text"], values["finish_reason"]) for values in map(json.loads, whole.out.splitlines())]
    assert found == ([(text, "error")] if text else [])


def test_a_schema_may_come_from_a_pipe(ask: Callable[..., Done]) -> None:
    form = b'{"enum": ["yes", "no"]}'
    done = ask("the", "--schema", "-", "--max-tokens", 20, stdin=form)
    assert done.out.strip() in ('"yes"', '"no"')
    end, begin = os.pipe()
    os.write(begin, form)
    os.close(begin)
    try:
        assert ask("the", "--schema", f"/dev/fd/{end}", "--max-tokens", 20).out == done.out
    finally:
        os.close(end)


def test_a_constrained_reply_at_the_token_limit_is_said_to_be_cut_off(ask: Callable[..., Done]) -> None:
    done = ask("the", "--regex", "[ab]{30}", "--max-tokens", 6)
    assert (done.code, bool(done.out)) == (0, True)
    assert done.err == "specchat: the reply was cut off at 6 tokens (--max-tokens) and is not complete\n"


def test_a_pipe_gets_plain_text_with_no_control_characters(ask: Callable[..., Done]) -> None:
    options = ("--max-tokens", 200, "--temperature", 5, "--seed", 1)
    as_json = ask("the", "--json", *options).out
    text = json.loads(as_json)["text"]
    assert [c for c in text if unicodedata.category(c) == "Cc"]  # or this test shows nothing
    assert not text.isascii()
    assert as_json.isascii()
    assert all(character >= " " for character in as_json[:-1])
    done = ask("the", *options)
    assert (done.code, done.err) == (0, "")
    assert done.out == escape_controls(text).rstrip("\n") + "\n"


@pytest.mark.parametrize(
    ("arguments", "stdin", "messages"),
    [
        ((), b"\xef\xbb\xbfone\r\ntwo \xe2\x82 \x1b[1m\x00", (Message("user", "one\ntwo \ufffd [1m"),)),
        (("Sum it up.", "--system", "Be\x07 brief."), b"a\nb\n", (Message("system", "Be brief."),
                                                                 Message("user", "Sum it up.\n\na\nb\n"))),
        (("caf\udce2",), None, (Message("user", "caf\ufffd"),)),
    ],
)  # fmt: skip
def test_the_prompt_is_the_question_and_the_text_on_stdin(
    ask: Callable[..., Done], tmp_path: Path, arguments: tuple[str, ...], stdin: bytes | None, messages: tuple[Any, ...]
) -> None:
    assert ask(*arguments, "--max-tokens", 1, "--trace", tmp_path / "t", stdin=stdin).code == 0
    (request,) = (record for record in read_trace(tmp_path / "t") if isinstance(record, Request))
    assert request.messages == messages


def test_a_trace_holds_everything_the_figures_come_from(ask: Callable[..., Done], tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    values = json.loads(ask("the quick brown fox", "--json", "--max-tokens", 60, "--trace", path).out)
    records = list(read_trace(path))
    assert [type(record) for record in records[:3]] == [Ready, Request, Admitted]
    metrics = Metrics()
    for record in records:
        if isinstance(record, Admitted | Round):
            metrics.add(record)
    assert (metrics.rounds, metrics.tested, metrics.accepted) == tuple(
        values[name] for name in ("rounds", "tested", "accepted")
    )
    assert metrics.tokens_per_second == values["tokens_per_second"]
    rounds = [record for record in records if isinstance(record, Round)]
    assert [token for record in rounds for token in record.emitted] == values["token_ids"]
    assert "".join(record.text for record in rounds) + records[-1].tail == values["text"]


def test_a_prompt_longer_than_the_context_is_refused(ask: Callable[..., Done]) -> None:
    assert "the context holds 256" in ask("fox " * 1000).sentence
    assert "the context holds 64" in ask("fox " * 100, "--context", 64, "--json").sentence


def test_endless_input_is_refused_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specchat.app.cli.question.LONGEST_INPUT", 1 << 20)
    assert "longer than 1 MiB" in command("ask", stdin=b"x" * ((1 << 20) + 1)).sentence


def test_an_engine_that_dies_is_one_sentence(ask: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    from specchat.engine.worker.rounds import Rounds

    monkeypatch.setattr(Rounds, "run", fails(EngineError("the lights went out")))
    assert ask("the").sentence == "the lights went out"


def test_the_best_text_is_printed_and_all_beams_beside_it(ask: Callable[..., Done], model: Path) -> None:
    options = ("the quick brown fox", "--beams", 3, "--max-tokens", 20, "--gamma", 4, "--draft", model)
    values = json.loads(ask(*options, "--json").out)
    done = ask(*options)
    assert done.code == 0
    assert done.out == escape_controls(values["text"]).rstrip("\n") + "\n"
    lines = done.err.strip().splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["beam", "1", "2", "3"]
    assert f"{values['beams'][0]['score']:.4f}" in lines[1]
    assert lines[-1].startswith(
        f"{values['target_passes']} target passes instead of 20: {values['passes_saved']} saved"
    )
    assert all(len(line) <= 100 for line in lines)


def test_json_has_the_same_beams_with_and_without_drafts(ask: Callable[..., Done], model: Path) -> None:
    options = ("0123 0123 01", "--beams", 3, "--max-tokens", 20, "--json", "--draft", model)
    drafted, auto, plain = (json.loads(ask(*options, "--gamma", gamma).out) for gamma in (4, "auto", 0))
    texts = [[beam["token_ids"] for beam in values["beams"]] for values in (drafted, auto, plain)]
    assert texts[0] == texts[1] == texts[2]
    assert drafted["passes_saved"] == 20 - drafted["target_passes"] >= 0 == plain["passes_saved"]
    said = [[values[name] for name in ("drafter", "gamma", "draft_width")] for values in (drafted, auto, plain)]
    assert said == [["model", 4, 6], ["model", "auto", 6], ["none", 0, 0]]


def test_another_chat_template(ask: Callable[..., Done], tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    lengths = []
    for text in ("{{ messages[0].content }}", "{{ messages[0].content * 3 }}"):
        file.write_text(text)
        lengths.append(
            json.loads(ask("fox", "--json", "--max-tokens", 2, "--chat-template", file).out)["prompt_tokens"]
        )
    assert lengths[1] == 3 * lengths[0]
    file.write_text("{% for")
    facts = tmp_path / "config.json"
    facts.write_text('{"model_type": "llama"}')
    for wrong in (file, tmp_path / "none.jinja", facts):
        done = ask("fox", "--chat-template", wrong)
        assert (done.code, str(wrong) in done.err, done.err.count("\n")) == (2, True, 1)
