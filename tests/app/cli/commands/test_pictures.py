"""`specchat screenshot` and `specchat export`: files that are new, from traces and chats that are there."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from specchat.app.cli.main import FAILED, run
from specchat.app.paths import settings_file
from specchat.app.storage.store import Store
from specchat.engine import Admitted, Finished, Round, message_parts, to_json
from tests.app.recorded import TRACES, trace
from tests.failing import files_of_at_most

CODE = str(TRACES / "code.jsonl")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def chats(home: Path) -> Path:
    """Two chats; the newer one with two replies to its prompt."""
    records = [r for r in trace() if isinstance(r, Admitted | Round | Finished)]
    first = records[: next(i for i, r in enumerate(records) if isinstance(r, Finished)) + 1]
    with Store(home / "data" / "specchat.db") as store:
        store.add_message(store.create_chat("Regex for dates").id, "user", "A regex?")
        chat = store.create_chat("Lisbon in spring")
        prompt = store.add_message(chat.id, "user", "What should I see?")
        text = "".join(r.text if isinstance(r, Round) else r.tail for r in first if not isinstance(r, Admitted))
        for chosen in (False, True):
            reply = store.add_message(chat.id, "assistant", "", parent=prompt, chosen=chosen)
            said = message_parts(text if chosen else "the other one")
            store.append_rounds(reply, said, [to_json(r) for r in first] if chosen else [])
            store.finish_message(reply, "length" if chosen else "cancelled")
    return home


def text_of(svg: Path) -> str:
    return "".join(ElementTree.parse(svg).getroot().itertext()).replace("\xa0", " ")


def test_a_screenshot_is_the_end_of_the_trace(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["screenshot", CODE, "--out", "code.svg", "--size", "110x30", "--theme", "nord"]) == 0
    assert capsys.readouterr().out == "picture saved as code.svg\n"
    text = text_of(home / "code.svg")
    assert "specchat replay" in text
    assert "token limit" in text
    assert "#2e3440" in (home / "code.svg").read_text().lower()  # nord's ground


@pytest.mark.parametrize(
    ("name", "told"), [("fern", "theme 'fern' is not known"), ("bark", "primary is missing"), ("soil", "[fates]")]
)
def test_a_bad_theme_makes_no_picture(name: str, told: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = settings_file().parent / "themes"
    folder.mkdir(parents=True)
    (folder / "fern.toml").write_text('name = "moss"\nprimary = "#7a9b57"\n')
    (folder / "bark.toml").write_text("dark = true\n")
    (folder / "soil.toml").write_text('primary = "red"\nfates = "blue"\n')
    for options in (["--theme", name], []):
        settings_file().write_text(f'theme = "{name}"\n')
        assert run(["screenshot", CODE, "--out", "code.svg", *options]) == FAILED
        assert told in capsys.readouterr().err
        assert not (home / "code.svg").exists()
    assert run(["screenshot", CODE, "--out", "code.svg", "--theme", "moss"]) == 0


def test_an_interface_that_fails_draws_no_picture(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("specchat.app.ui.app.own_files")
    assert run(["screenshot", CODE, "--out", "code.svg"]) == FAILED
    assert not (home / "code.svg").exists()


@pytest.mark.usefixtures("chats")
def test_the_newest_chat_goes_to_stdout_as_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# Lisbon in spring\n\n## You\n\nWhat should I see?\n\n## Model\n\n")
    assert out.endswith("*reply 2 of 2 · token limit*\n")
    assert "the other one" not in out
    assert run(["export", "--list"]) == 0
    assert capsys.readouterr().out == "Lisbon in spring\nRegex for dates\n"


def test_a_failed_write_leaves_no_file(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with files_of_at_most(1000):
        assert run(["screenshot", CODE, "--out", "code.svg"]) == FAILED
    assert "code.svg cannot be written: File too large" in capsys.readouterr().err
    assert not (home / "code.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["paris"], "no chat has 'paris' in its title: specchat export --list shows all titles"),
        (["--out", "there.md"], "there.md exists already: name another file"),
        (["--out", "link.md"], "link.md exists already: name another file"),
    ],
)
def test_a_wrong_export(chats: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    (chats / "there.md").write_text("mine")
    (chats / "link.md").symlink_to(chats / "missing.md")
    assert run(["export", *arguments]) == FAILED
    assert capsys.readouterr().err.strip() == f"specchat: {sentence}"
    assert (chats / "there.md").read_text() == "mine"


def test_pictures_have_no_buttons_and_a_legend_only_of_coloured_tokens(chats: Path) -> None:
    with Store(chats / "data" / "specchat.db") as store:
        chat = store.create_chat("Not written here")
        reply = store.add_message(chat.id, "assistant", "", parent=store.add_message(chat.id, "user", "Hello?"))
        store.append_rounds(reply, message_parts("Good day."), [])
        store.finish_message(reply, "eos")
    assert run(["screenshot", CODE, "--out", "trace.svg"]) == 0
    for title, coloured, said in (("Lisbon", True, "What should I see?"), ("Not written", False, "Hello?")):
        assert run(["export", title, "--out", f"{title}.svg"]) == 0
        text = text_of(chats / f"{title}.svg")
        assert ("correction" in text) is coloured
        assert said in text
    assert not any("<circle" in picture.read_text() for picture in chats.glob("*.svg"))
