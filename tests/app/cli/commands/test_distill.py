"""`specchat distill` at the command line: the final table, and one sentence for what cannot be."""

from collections.abc import Callable
from pathlib import Path

import pytest

from specchat.app.paths import database_file
from specchat.app.storage.store import Store
from specchat.engine.tools.distill import training as distilling
from tests.app.cli.commands.command import command
from tests.app.storage.helpers import add_turn


def test_tables_are_counted_and_loaded(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    target, out, text = tiny_model(), tmp_path / "tables", tmp_path / "text.txt"
    text.write_text("the quick brown fox and the lazy dog\n" * 100)
    done = command("distill", "--target", str(target), "--out", str(out), "--kind", "bigram", "--text", str(text))
    assert done.code == 0
    assert done.out.startswith(f"A bigram table for {target.name}: ")
    assert "longer than" not in done.err
    assert done.out.splitlines()[-1] == f"Use it with: specchat --draft {out}"
    answered = command("ask", "hello", "--target", str(target), "--draft", str(out), "--max-tokens", "8", "--json")
    assert '"drafter": "bigram"' in answered.out
    refused = command("ask", "hello", "--target", str(target), "--drafter", "unigram", "--max-tokens", "8")
    assert refused.code == 2
    assert "it needs --draft with what specchat distill --kind bigram makes" in refused.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--out x --kind owl", "kind 'owl' is not there: choose one of eagle"),
        ("--out x --minutes 0", "minutes is 0: it must be above 0"),
        ("--out x --minutes 0.00001", "tokens in the time given and a draft head needs"),
        ("--out x --kind bigram", "there is nothing to count: name texts with --text"),
        ("--out x --from smollm2-135m --kind medusa", "smollm2-135m holds no draft of the kind medusa"),
        ("--out x --from smollm2-135m", "was made for smollm2-135m, with other weights than"),
        ("--out x --from y --kind bigram", "from is for kinds that are trained"),
        ("--out x --kind bigram --text y --minutes 3", "--minutes contradicts --text"),
        ("--out x --chats", "chats continue the training of a head: give --from"),
        ("--out x --chats --from smollm2-135m", "was made for smollm2-135m, with other weights than"),
        ("", "Missing option '--out'"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command("distill", "--target", str(tiny_model()), *arguments.split())
    assert done.code == 2
    assert done.err.splitlines()[-1].startswith("specchat: ")
    assert words in done.err.splitlines()[-1]
    if "0.00001" not in arguments:  # in which some text is written
        assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_chats_are_learnt(tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distilling, "LEAST_TOKENS", 500)
    monkeypatch.setattr(distilling, "LEAST_OF_CHATS", 100)
    target, head, out = tiny_model(), tmp_path / "head", tmp_path / "learnt"
    assert command("distill", "--target", str(target), "--out", str(head), "--minutes", "0.06").code == 0
    with Store(database_file()) as store:
        for number in range(3):
            chat = store.create_chat(f"{number}")
            add_turn(store, chat.id, "the quick fox", "the lazy dog sleeps " * 20, model=str(target))
    options = ("--target", str(target), "--from", str(head), "--out", str(out), "--minutes", "0.06")
    done = command("distill", "--chats", *options)
    assert done.code == 0, done.err
    assert "On the newest chats, which were held out" in done.out
    assert [line.split("  ")[0] for line in done.out.splitlines() if "greedy" in line] == ["greedy, before", "greedy"]
    assert not (out / ".chats.jsonl").exists()
    assert {file.name for file in (out / ".work").iterdir()} == {"distill.json", "lock"}
