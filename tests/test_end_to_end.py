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
ENTER = "\r"


@pytest.fixture
def home(tmp_path: Path, default_model: Path) -> Path:
    """A separate home that contains only the model."""
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
        terminal.type("How many legs does a dog have", "How many legs does a dog have")  # the model is still loading
        terminal.type("?", "How many legs does a dog have?")
        terminal.type(ENTER, "four")
        terminal.wait(lambda _: stored(home)[1].finish_reason == "eos", PATIENCE_S, "end of the reply")
        assert "Traceback" not in terminal.text
        assert terminal.leave(QUIT) == 0
    prompt, reply = stored(home)
    assert prompt.content == "How many legs does a dog have?"
    assert "four" in reply.content
    events = [from_json(line) for line in reply.events]
    (finished,) = (event for event in events if isinstance(event, Finished))
    assert reply.content == "".join(event.text for event in events if isinstance(event, Round)) + finished.tail
