"""What was sent along with a prompt is stored with it, and what is attached to an unsent text with that."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings

from specchat.app.storage.attachments import FILE, PASTE, Attachment
from specchat.app.storage.store import Store
from tests.app.storage.helpers import Clock, clean

CODE = Attachment(FILE, "a.py", "print(1)\n", 5)
LOG = Attachment(PASTE, "[pasted 2 lines · 8 B]", "one\ntwo\n")


def test_a_message_keeps_its_attachments_and_a_fork_copies_them(path: Path) -> None:
    with Store(path, Clock()) as store:
        chat = store.create_chat("Code")
        prompt = store.add_message(chat.id, "user", f"see @a.py {LOG.name}", attachments=(CODE, LOG))
        reply = store.add_message(chat.id, "assistant", "fine", parent=prompt)
        store.attachments.set_tokens(prompt, LOG.name, 4)
        fork = store.fork_chat([prompt, reply], "Code (fork)")
    with Store(path) as store:
        counted = (CODE, Attachment(PASTE, LOG.name, LOG.text, 4))
        for each in (chat, fork):
            assert [message.attachments for message in store.messages(each.id)] == [counted, ()]
        assert store.prompts(10) == []  # without its chat, the sign of the paste would stand for nothing


def test_a_prompt_that_is_taken_back_leaves_nothing(store: Store) -> None:
    chat = store.create_chat("Code")
    prompt = store.add_message(chat.id, "user", "see @a.py", attachments=(CODE,))
    assert store.prompts(10) == ["see @a.py"]
    store.take_back(prompt)
    assert store.messages(chat.id) == []
    assert store._file._db.execute("SELECT count(*) FROM attachments").fetchone() == (0,)


def test_what_is_attached_to_an_unsent_text_is_replaced_or_left(store: Store) -> None:
    store.unsent.keep(0, "see @a.py", (CODE,))
    store.unsent.keep(7, LOG.name, (LOG,))
    store.unsent.keep(0, "see @a.py there")
    assert store.attachments.unsent() == {0: (CODE,), 7: (LOG,)}
    store.unsent.keep(0, "", ())
    assert store.attachments.unsent() == {7: (LOG,)}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(clean, clean)
def test_any_text_comes_back_exactly(store: Store, name: str, text: str) -> None:
    one = Attachment(PASTE, name, text, path=name)
    store.unsent.keep(3, name, (one,))
    assert store.attachments.unsent()[3] == (one,)
