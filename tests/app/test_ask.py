"""`specchat ask` on a model of random weights: what is printed, and how every way out of it looks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pexpect
import pyte
import pytest
from rich.style import Style

from app.printers import ColourPrinter, JsonPrinter, PlainPrinter
from app.sanitize import visible
from app.settings import Settings
from engine import (
    Admitted,
    EngineError,
    Finished,
    FinishReason,
    Message,
    Ready,
    Request,
    Round,
    Statistics,
    read_trace,
)
from tests.app.command import Done, Output, command
from tests.engine.records import EVERY_RECORD, make_round

SPECCHAT = Path(sys.executable).with_name("specchat")
KEYS = ["text", "token_ids", "prompt_tokens", "finish_reason", "rounds", "tested", "accepted", "mean_emitted_length"]
KEYS += ["tokens_per_second", "time_to_first_token_s", "seconds", "drafter", "gamma", "device", "dtype"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of the user's is read or written."""
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def model(tiny_model: Callable[..., Path]) -> Path:
    """A model that never ends a reply by itself."""
    return tiny_model(eos_token_id=0)


@pytest.fixture
def ask(model: Path) -> Callable[..., Done]:
    """Runs `specchat ask` on that model."""

    def run(*arguments: object, **about: object) -> Done:
        return command("ask", *arguments, "--target", model, "--dtype", "float32", **about)  # type: ignore[arg-type]

    return run


# ---- what is printed


def test_json_is_one_object_whose_figures_agree(ask: Callable[..., Done]) -> None:
    done = ask("the quick brown fox", "--json", "--max-tokens", 60)
    assert (done.code, done.err) == (0, "")
    values = json.loads(done.out)
    assert list(values) == KEYS
    assert done.out.count("\n") == 1
    assert len(values["token_ids"]) == 60
    assert values["finish_reason"] == "length"
    assert 0 <= values["accepted"] <= values["tested"]
    assert values["mean_emitted_length"] == pytest.approx(60 / values["rounds"])
    assert values["tokens_per_second"] == pytest.approx(60 / values["seconds"])
    assert values["time_to_first_token_s"] > 0
    assert (values["drafter"], values["gamma"], values["device"], values["dtype"]) == ("ngram", 4, "cpu", "float32")


def test_json_is_ascii_whatever_the_model_said(ask: Callable[..., Done]) -> None:
    done = ask("the", "--json", "--max-tokens", 100, "--temperature", 100, "--seed", 1)
    assert done.out.isascii()
    assert all(character >= " " for character in done.out[:-1])
    assert any(not character.isascii() for character in json.loads(done.out)["text"])


def test_a_pipe_gets_plain_text_with_no_control_characters(ask: Callable[..., Done]) -> None:
    options = ("--max-tokens", 200, "--temperature", 100, "--seed", 1)
    text = json.loads(ask("the", "--json", *options).out)["text"]
    assert [c for c in text if unicodedata.category(c) == "Cc"]  # or this test shows nothing
    done = ask("the", *options)
    assert (done.code, done.err) == (0, "")
    assert done.out == visible(text).rstrip("\n") + "\n"


def test_greedy_text_does_not_depend_on_the_drafter(ask: Callable[..., Done]) -> None:
    options = ("the quick brown fox jumps", "--max-tokens", 80)
    outputs = {ask(*options, *more).out for more in (("--drafter", "none"), ("--gamma", 1), ("--gamma", 6), ())}
    assert len(outputs) == 1
    assert len(outputs.pop()) > 40


def test_a_seed_repeats_the_reply(ask: Callable[..., Done]) -> None:
    sampled = ("the", "--temperature", 1.5, "--top-k", 50, "--top-p", 0.95, "--min-p", 0.01, "--max-tokens", 30)
    one, same, other = (ask(*sampled, "--seed", seed).out for seed in (1, 1, 2))
    assert one == same != other


def test_stop_strings_end_the_reply_before_them(ask: Callable[..., Done]) -> None:
    text = json.loads(ask("the", "--json", "--max-tokens", 60).out)["text"]
    stop = text[20:23]
    values = json.loads(ask("the", "--json", "--max-tokens", 60, "--stop", "never there", "--stop", stop).out)
    assert values["finish_reason"] == "stop"
    assert values["text"] == text[: text.index(stop)]


def prompts(path: Path) -> tuple[Message, ...]:
    (request,) = (record for record in read_trace(path) if isinstance(record, Request))
    return request.messages


def test_text_on_stdin_is_the_question(ask: Callable[..., Done], tmp_path: Path) -> None:
    assert ask("--max-tokens", 1, "--trace", tmp_path / "t", stdin=b"one\r\ntwo \xe2\x82 \x1b[1m\x00").code == 0
    assert prompts(tmp_path / "t") == (Message("user", "one\ntwo \ufffd [1m"),)


def test_text_on_stdin_follows_the_question(ask: Callable[..., Done], tmp_path: Path) -> None:
    done = ask("Sum it up.", "--system", "Be\x07 brief.", "--max-tokens", 1, "--trace", tmp_path / "t", stdin=b"a\nb\n")
    assert done.code == 0
    assert prompts(tmp_path / "t") == (Message("system", "Be brief."), Message("user", "Sum it up.\n\na\nb\n"))


def test_half_a_character_on_the_command_line_is_replaced(ask: Callable[..., Done], tmp_path: Path) -> None:
    assert ask("caf\udce2", "--max-tokens", 1, "--trace", tmp_path / "t").code == 0
    assert prompts(tmp_path / "t") == (Message("user", "caf\ufffd"),)


def test_settings_and_variables_count(ask: Callable[..., Done], home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "config").mkdir(parents=True)
    (home / "config" / "settings.toml").write_text("gamma = 2\nmax_tokens = 5\n")
    monkeypatch.setenv("SPECCHAT_MAX_TOKENS", "7")
    values = json.loads(ask("the", "--json").out)
    assert (values["gamma"], len(values["token_ids"])) == (2, 7)
    assert len(json.loads(ask("the", "--json", "--max-tokens", 9).out)["token_ids"]) == 9


def test_a_broken_settings_file_is_said_and_kept(ask: Callable[..., Done], home: Path) -> None:
    (home / "config").mkdir(parents=True)
    (home / "config" / "settings.toml").write_text("gamma = -2\n")
    done = ask("the", "--max-tokens", 3)
    assert done.code == 0
    assert "gamma is -2" in done.err
    assert "kept as settings.toml.broken-1" in done.err
    assert done.err.count("\n") == 1


# ---- traces


def test_a_trace_holds_everything_the_figures_come_from(ask: Callable[..., Done], tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    values = json.loads(ask("the quick brown fox", "--json", "--max-tokens", 60, "--trace", path).out)
    records = list(read_trace(path))
    assert [type(record) for record in records[:3]] == [Ready, Request, Admitted]
    assert isinstance(records[-1], Finished)
    statistics = Statistics()
    for record in records:
        if isinstance(record, Admitted | Round):
            statistics.add(record)
    assert (statistics.rounds, statistics.tested, statistics.accepted) == tuple(
        values[name] for name in ("rounds", "tested", "accepted")
    )
    assert statistics.tokens_per_second == values["tokens_per_second"]
    rounds = [record for record in records if isinstance(record, Round)]
    assert [token for record in rounds for token in record.emitted] == values["token_ids"]
    assert "".join(record.text for record in rounds) + records[-1].tail == values["text"]


def test_a_trace_never_overwrites(ask: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert "mine.txt exists already" in ask("the", "--trace", tmp_path / "mine.txt").sentence
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert "cannot be written" in ask("the", "--trace", tmp_path / "no" / "trace.jsonl").sentence


def test_a_model_that_cannot_be_loaded_leaves_no_trace_behind(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    done = command("ask", "hi", "--target", tmp_path / "no-model", "--trace", path)
    assert "no-model" in done.sentence
    assert not path.exists()


# ---- what cannot be answered


@pytest.mark.parametrize("question", ["", "   ", "\n\t", "\x00\x1b"])
def test_an_empty_question_is_refused(ask: Callable[..., Done], question: str) -> None:
    assert "there is nothing to ask" in ask(question).sentence
    assert "there is nothing to ask" in ask(stdin=question.encode()).sentence


def test_a_prompt_longer_than_the_context_is_refused(ask: Callable[..., Done]) -> None:
    assert "the context holds 256" in ask("fox " * 1000).sentence
    assert "the context holds 64" in ask("fox " * 100, "--context", 64, "--json").sentence


def test_endless_input_is_refused_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.commands.ask.LONGEST_INPUT", 1 << 20)
    assert "longer than 1 MiB" in command("ask", stdin=b"x" * ((1 << 20) + 1)).sentence


def test_unknown_devices_and_long_drafts_are_refused(ask: Callable[..., Done]) -> None:
    assert "abacus" in ask("the", "--device", "abacus").sentence
    assert "gamma is 500" in ask("the", "--gamma", 500).sentence


# ---- ways out


def test_interrupting_keeps_the_text_and_the_whole_trace(ask: Callable[..., Done], tmp_path: Path) -> None:
    def interrupt_once(_: str) -> None:
        if not written:
            written.append(1)
            signal.raise_signal(signal.SIGINT)

    written: list[int] = []
    path = tmp_path / "trace.jsonl"
    done = ask("the", "--max-tokens", 230, "--trace", path, on_write=interrupt_once)
    assert (done.code, done.err) == (130, "")
    assert done.out.endswith("\n")
    *_, last = records = list(read_trace(path))
    assert isinstance(last, Finished)
    assert last.reason is FinishReason.CANCELLED
    text = "".join(record.text for record in records if isinstance(record, Round)) + last.tail
    assert done.out == visible(text).rstrip("\n") + "\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_interrupting_prints_the_json_of_what_there_is(
    ask: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    add = JsonPrinter.add

    def add_and_interrupt(self: JsonPrinter, event: Admitted | Round) -> None:
        add(self, event)
        if isinstance(event, Round) and event.number == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(JsonPrinter, "add", add_and_interrupt)
    done = ask("the", "--json", "--max-tokens", 230)
    assert (done.code, done.err) == (130, "")
    values = json.loads(done.out)
    assert values["finish_reason"] == "cancelled"
    assert values["rounds"] >= 4
    assert len(values["token_ids"]) < 230


def test_a_second_interrupt_ends_at_once(ask: Callable[..., Done]) -> None:
    def interrupt(_: str) -> None:
        signal.raise_signal(signal.SIGINT)

    done = ask("the", "--max-tokens", 230, on_write=interrupt)
    assert (done.code, done.err) == (130, "")


def test_a_reader_that_leaves_ends_the_reply_quietly(ask: Callable[..., Done]) -> None:
    def leave(_: str) -> None:
        raise BrokenPipeError

    done = ask("the", "--max-tokens", 230, on_write=leave)
    assert (done.code, done.err) == (1, "")


def test_an_interrupt_while_loading_leaves_a_clean_line(model: Path) -> None:
    child = pexpect.spawn(str(SPECCHAT), ["ask", "the", "--target", str(model)], timeout=60)
    child.expect_exact("starting the engine")
    time.sleep(0.3)
    child.sendintr()
    started = time.monotonic()
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130
    assert time.monotonic() - started < 2
    screen = pyte.Screen(80, 24)
    pyte.ByteStream(screen).feed(child.before)
    assert "".join(screen.display).strip() in ("", "^C")


def test_the_installed_command_ends_quietly_when_its_reader_leaves(model: Path) -> None:
    arguments = [str(SPECCHAT), "ask", "the", "--target", str(model), "--max-tokens", "200"]
    asking = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert asking.stdout is not None
    assert asking.stderr is not None
    os.read(asking.stdout.fileno(), 1)
    asking.stdout.close()
    assert asking.stderr.read() == b""
    asking.wait(60)


# ---- printers


def printed(printer_type: type[PlainPrinter], *events: Round | Finished) -> str:
    out = Output(terminal=True)
    printer = printer_type(out)
    for event in events:
        printer.finish(event) if isinstance(event, Finished) else printer.add(event)
    return out.text


HOSTILE = "\x1b[31m\x9b1m\x07\u202e\r"
END = Finished("r", FinishReason.EOS, "", "", 2.0)


@pytest.mark.parametrize("printer_type", [PlainPrinter, ColourPrinter])
def test_no_printer_lets_escape_sequences_through(
    printer_type: type[PlainPrinter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")  # so that none are the printer's own
    event = make_round(drafted=1)
    object.__setattr__(event, "pieces", (HOSTILE,))
    object.__setattr__(event, "last_piece", HOSTILE)
    shown = printed(printer_type, event, Finished("r", FinishReason.EOS, HOSTILE, "", 2.0))
    assert shown == visible(HOSTILE) * 3 + "\n"


@pytest.fixture
def colours(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    Style.parse.cache_clear()  # rich's styles remember the codes of the first terminal they were drawn on
    return monkeypatch


def looks(text: str) -> dict[str, tuple[str, bool, bool]]:
    """Colour, boldness and underlining of each word as a terminal draws it."""
    screen = pyte.Screen(80, 5)
    pyte.Stream(screen).feed(text)
    cells = [screen.buffer[0][column] for column in range(80)]
    words = screen.display[0].split()
    starts = {word: screen.display[0].index(word) for word in words}
    return {word: (cells[at].fg, cells[at].bold, cells[at].underscore) for word, at in starts.items()}


def one_of_each() -> tuple[Round, ...]:
    rejected = make_round(drafted=3, accepted=1, rejected=True)
    object.__setattr__(rejected, "pieces", ("kept ", "refused ", "unjudged "))
    object.__setattr__(rejected, "last_piece", "corrected ")
    accepted = make_round(drafted=1)
    object.__setattr__(accepted, "pieces", ("fine ",))
    object.__setattr__(accepted, "last_piece", "extra ")
    plain = make_round(drafted=0)
    object.__setattr__(plain, "last_piece", "plain ")
    return rejected, accepted, plain


@pytest.mark.usefixtures("colours")
def test_on_a_terminal_every_emitted_token_has_the_look_of_its_fate() -> None:
    seen = looks(printed(ColourPrinter, *one_of_each(), END))
    assert seen == {
        "kept": ("009e73", False, False),
        "corrected": ("e69f00", False, True),
        "fine": ("009e73", False, False),
        "extra": ("56b4e9", True, False),
        "plain": ("default", False, False),
    }


def test_without_colours_the_attributes_stay(colours: pytest.MonkeyPatch) -> None:
    colours.setenv("NO_COLOR", "1")
    seen = looks(printed(ColourPrinter, *one_of_each(), END))
    assert {word: look[1:] for word, look in seen.items()} == {
        "kept": (False, False),
        "corrected": (False, True),
        "fine": (False, False),
        "extra": (True, False),
        "plain": (False, False),
    }
    assert {look[0] for look in seen.values()} == {"default"}


def test_sixteen_colours_will_do(colours: pytest.MonkeyPatch) -> None:
    colours.delenv("COLORTERM")
    colours.setenv("TERM", "xterm-16color")
    shown = printed(ColourPrinter, *one_of_each(), END)
    assert "38;2" not in shown
    assert "38;5" not in shown
    assert "\x1b[" in shown


def test_an_engine_that_dies_is_one_sentence(ask: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.loop import Loop

    def fail(_: Loop) -> None:
        raise EngineError("the lights went out")

    monkeypatch.setattr(Loop, "_round", fail)
    assert ask("the").sentence == "the lights went out"


def test_json_figures_that_divide_by_nothing_are_null() -> None:
    ready = next(record for record in EVERY_RECORD if isinstance(record, Ready))
    out = Output(terminal=False)
    JsonPrinter(ready, Settings(), out).finish(END)
    values = json.loads(out.text)
    assert values["mean_emitted_length"] is values["tokens_per_second"] is values["time_to_first_token_s"] is None
    assert values["rounds"] == 0
