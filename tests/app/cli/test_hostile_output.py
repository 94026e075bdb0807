"""Commands print no control characters, whoever wrote the names, titles and texts."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specchat.app.paths import database_file
from specchat.app.sanitize import escape_controls
from specchat.app.storage.store import Store
from tests.app.cli.commands.command import command
from tests.app.sources.servers import recorded as shapes
from tests.app.sources.servers.recorded import CHAT, Recorded
from tests.app.storage.helpers import add_turn

HOSTILE = "a\x1b]0;t\x07\x1b]52;c;eA==\x07\x9b31m\u202eb\u2066\x7f[/b][red]"


@pytest.fixture
def chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The text of a stored chat."""
    monkeypatch.chdir(tmp_path)
    database_file().parent.mkdir(parents=True)
    with Store(database_file()) as store:
        add_turn(store, store.create_chat(HOSTILE, system=HOSTILE).id, f"{HOSTILE} 👩\u200d🚀", f"{HOSTILE} שלום\u200f")
    return HOSTILE


def test_an_export_holds_no_sequences_and_keeps_every_character_as_json(chat: str, tmp_path: Path) -> None:
    for terminal in (False, True):
        for arguments in (("--list",), (), ("--format", "json"), ("--format", "perfetto"), ("--format", "html")):
            done = command("export", *arguments, terminal=terminal)
            assert (done.code, escape_controls(done.out)) == (0, done.out)
    name = f"x{escape_controls(chat)[:3]}\x1b]0;t\x07.md"
    assert escape_controls(command("export", "--out", name).err).count("␛]0;t␇.md") == 1
    text = (tmp_path / name).read_text()
    assert not set(text) & {"\x1b", "\x9b", "\u202e", "\u2066", "\x07"}
    assert "👩\u200d🚀" in text
    assert "שלום\u200f" in text
    assert command("export", "--out", "x.json").code == 0
    text = (tmp_path / "x.json").read_text()
    assert escape_controls(text) == text
    assert json.loads(text)["turns"][0]["replies"][0]["text"] == f"{chat} שלום\u200f"


@pytest.mark.parametrize("arguments", [("--{}",), ("{}",), ("ask", "--drafter", "{}", "Hi"), ("export", "{}"),
                                       ("replay", "{}"), ("models", "pull", "{}")])  # fmt: skip
def test_a_mistake_is_named_without_its_sequences(arguments: tuple[str, ...]) -> None:
    done = command(*(each.format(HOSTILE) for each in arguments))
    assert done.code
    assert escape_controls(done.out + done.err) == done.out + done.err


@pytest.mark.parametrize("key", ["quant_method", "architectures", "torch_dtype", "model_type"])
def test_a_model_s_config_is_quoted_without_its_sequences(key: str, tiny_model: Callable[..., Path]) -> None:
    file = tiny_model() / "config.json"
    config = json.loads(file.read_text())
    value = {"quant_method": HOSTILE} if key == "quant_method" else [HOSTILE] if key == "architectures" else HOSTILE
    file.write_text(json.dumps(config | {"quantization_config" if key == "quant_method" else key: value}))
    done = command("ask", "Hi", "--target", file.parent, "--drafter", "none", "--max-tokens", "1", terminal=False)
    assert escape_controls(done.out + done.err) == done.out + done.err


def test_a_server_s_names_and_texts(model: Path) -> None:
    answers = {**shapes.PLAIN, "/v1/models": shapes.models("openai", HOSTILE)}
    stream = [shapes.chunk(HOSTILE), shapes.chunk(None, "stop"), shapes.last_chunk(12, 5), "[DONE]"]
    own = ("--target", model, "--dtype", "float32", "--left", "none", "--repeat", "1", "--max-tokens", "4")
    with Recorded(answers, {CHAT: stream}) as server:
        for arguments in (("ask",), ("ask", "--json"), ("compare", *own), ("compare", *own, "--json")):
            done = command(*arguments, "Hi", "--attach", server.url)
            assert (done.code, escape_controls(done.out + done.err)) == (0, done.out + done.err)
