"""The installed program with the real default model, in a terminal, as a person uses it."""

import sys
from pathlib import Path

import pytest

from specchat.app.storage.store import Store, StoredMessage
from specchat.engine import Finished, Round, from_json
from tests.terminal import PATIENCE_S, Terminal

pytestmark = pytest.mark.model

SPECCHAT = Path(sys.executable).with_name("specchat")
QUIT = "\x11"  # ctrl+q
CHATS = "\x02"  # ctrl+b
DOWN = "\x1b[B"
ENTER = "\r"


@pytest.fixture
def home(tmp_path: Path, default_model: Path) -> Path:
    """A home of its own, in which only the model is there already."""
    (tmp_path / "models").symlink_to(default_model.parent)
    return tmp_path


def stored(home: Path) -> list[StoredMessage]:
    """The messages of the newest chat, as another program sees them."""
    with Store(home / "data" / "specchat.db") as store:
        assert store.notice is None
        chats = store.chats()
        return store.messages(chats[0].id) if chats else []


def test_a_question_is_answered_on_the_screen_and_kept(home: Path) -> None:
    with Terminal(SPECCHAT, SPECCHAT_HOME=str(home)) as terminal:
        terminal.wait_for("Ask anything")
        terminal.type("How many legs does a dog have")  # the model is still loading
        terminal.wait_for("How many legs does a dog have")
        terminal.type("?")
        terminal.wait_for("How many legs does a dog have?")
        terminal.type(ENTER)
        terminal.wait_for("four")
        terminal.wait(lambda _: stored(home)[1].finish_reason == "eos", PATIENCE_S, "end of the reply")
        assert "Traceback" not in terminal.text
        assert terminal.leave(QUIT) == 0
    prompt, reply = stored(home)
    assert prompt.content == "How many legs does a dog have?"
    assert "four" in reply.content
    events = [from_json(line) for line in reply.events]
    assert reply.content == "".join(event.text for event in events if isinstance(event, Round)) + events[-1].tail
    assert isinstance(events[-1], Finished)


def test_a_reply_cut_short_by_a_kill_is_there_afterwards(home: Path) -> None:
    def grown(_: Terminal) -> bool:
        messages = stored(home)
        return len(messages) == 2 and len(messages[1].content) > 100

    question = "Write a very long story about a lighthouse keeper."
    with Terminal(SPECCHAT, "--max-tokens", 2000, columns=80, rows=24, SPECCHAT_HOME=str(home)) as terminal:
        terminal.wait_for("Ask anything")
        terminal.type(question)
        terminal.wait_for(question)
        terminal.type(ENTER)
        terminal.wait(grown, 180, "stored reply of 100 characters")
        terminal.kill()

    prompt, reply = stored(home)
    assert prompt.content == question
    assert reply.finish_reason is None
    with Terminal(SPECCHAT, "--rejected", "hide", columns=80, rows=24, SPECCHAT_HOME=str(home)) as terminal:
        terminal.wait_for("Ask anything")
        terminal.type(CHATS)
        terminal.wait_for("Write a very long")
        terminal.type(DOWN)
        terminal.type(ENTER)
        terminal.wait_for("interrupted")
        terminal.wait_for(" ".join(reply.content.split())[:60])
        assert question in terminal.words
        assert terminal.leave(QUIT) == 0
    assert stored(home) == [prompt, reply]
