"""`specchat ask` with files, templates, and chats that it continues or begins."""

from collections.abc import Callable
from pathlib import Path

import pytest

from specchat.app.chat.attachments import content_of
from specchat.app.chat.conversation import Conversation
from specchat.app.chat.stored_conversation import stored_conversation
from specchat.app.cli.question import Question
from specchat.app.errors import AppError
from specchat.app.paths import config_folder, database_file
from specchat.app.storage.store import Store
from specchat.engine import Message
from tests.app.cli.commands.command import Done


@pytest.fixture(autouse=True)
def nothing_piped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)


def question(text: str | None = "Why?", system: str | None = None, **rest: object) -> Question:
    return Question(text, system, (), (), **rest)  # type: ignore[arg-type]


def stored() -> list[Conversation]:
    with Store(database_file()) as store:
        return [stored_conversation(chat, store.messages(chat.id)) for chat in store.chats()]


def test_a_chat_is_kept_and_gone_on_with(ask: Callable[..., Done]) -> None:
    first = ask("the first question", "--save", "--system", "Be brief.", "--max-tokens", 5)
    second = ask("the second one", "--continue", "--max-tokens", 5)
    third = ask("the third one", "--chat", "FIRST", "--max-tokens", 5)
    assert (first.code, second.code, third.code) == (0, 0, 0)
    (kept,) = stored()
    assert kept.system == "Be brief."
    assert [turn.text for turn in kept.prompts] == ["the first question", "the second one", "the third one"]
    replies = [turn.reply for turn in kept.prompts if turn.reply]
    assert [reply.text.strip() for reply in replies] == [done.out.strip() for done in (first, second, third)]
    assert all(len(reply.emitted) == 5 for reply in replies)
    assert all(reply.model for reply in replies), "/learn reads the replies of one model"
    assert kept.messages(kept.prompts[1])[:2] == (Message("system", "Be brief."), Message("user", "the first question"))


def test_without_save_nothing_is_kept(ask: Callable[..., Done]) -> None:
    assert ask("a question", "--max-tokens", 2).code == 0
    assert not database_file().exists()


def test_files_come_before_the_question_under_their_names(tmp_path: Path) -> None:
    one, two = tmp_path / "one.py", tmp_path / "two.md"
    one.write_text("print(1)\n")
    two.write_text("a ```fence```\n")
    asked = question(files=(one, two))
    assert content_of(asked.prompt(), asked.attachments()) == (
        "one.py:\n```\nprint(1)\n```\n\ntwo.md:\n````\na ```fence```\n````\n\nWhy?"
    )
    one.write_bytes(b"\x7fELF\x00")
    with pytest.raises(AppError, match="is not a text file"):
        question(files=(one,)).attachments()


def test_a_template_is_filled_and_a_missing_variable_is_named() -> None:
    folder = config_folder() / "templates"
    folder.mkdir(parents=True)
    (folder / "translate.md").write_text("Translate into {{ language }}:\n{{text}} {{language}}\n")
    filled = question(None, template="translate", values=("language=French", "text={{text}} = x"))
    assert filled.prompt() == "Translate into French:\n{{text}} = x French"
    with pytest.raises(AppError, match="needs a value for text: give text="):
        question(None, template="translate", values=("language=French",)).prompt()
