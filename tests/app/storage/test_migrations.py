"""Older databases are brought up to date with their chats."""

import shutil
from pathlib import Path

import pytest

from specchat.app.chat.exchange import as_json, as_markdown, read_chats
from specchat.app.chat.stored_conversation import stored_conversation
from specchat.app.storage.search_index import ATTACHED
from specchat.app.storage.store import Store
from specchat.engine import PartKind, message_parts
from tests.app.storage.helpers import killed_after

VERSION_2 = Path(__file__).with_name("fixtures") / "version-2.db"
"""A database that version 2 of the schema made: several replies, a prompt that was never answered, a deleted chat, and
a chat whose replies do not name their prompts, as in version 1."""


VERSION_7 = VERSION_2.with_name("version-7.db")
"""A database that version 7 made: a chat with a file and a paste in its prompts, all of it indexed."""
VERSION_9 = VERSION_2.with_name("version-9.db")
"""A database that version 9 made: a chat with a model that thinks, whose marks are in the text."""
VERSION_11 = VERSION_2.with_name("version-11.db")
"""A database that version 11 made: a chat with two versions of its first prompt and two replies, of which one thinks,
one has rounds, one was interrupted while it thought and one failed; a waiting prompt, attachments and an unsent text;
a deleted chat; and an imported one whose thinking is in the text."""


def paths(store: Store) -> dict[str, list[tuple[str, int, int]]]:
    """For every chat: its prompts, how many replies each has, and the number of the reply that its path includes."""
    chats = {chat.title: stored_conversation(chat, store.messages(chat.id)) for chat in store.chats()}
    return {
        title: [(turn.text, len(turn.replies), turn.reply.place) for turn in conversation.prompts]
        for title, conversation in chats.items()
    }


def test_what_version_2_stored_becomes_a_tree_of_the_same_turns(path: Path) -> None:
    shutil.copy(VERSION_2, path)
    with Store(path) as store:
        assert store.notice is None
        assert paths(store) == {
            "From the first version": [("Hello", 1, 1), ("Hello again", 1, 1)],
            "Lisbon in two days": [
                ("What should I see in Lisbon?", 1, 1),
                ("Two answers, please", 2, 2),
                ("And where to eat?", 1, 1),
                ("Never answered", 1, 1),
            ],
        }
        lisbon = next(chat for chat in store.chats() if chat.title.startswith("Lisbon"))
        turns = stored_conversation(lisbon, store.messages(lisbon.id)).prompts
        assert all(len(reply.rounds) == 4 for turn in turns[:3] for reply in turn.replies)
        assert turns[1].reply is turns[1].replies[1]
        assert store.unsent.texts() == {0: "half a question"}
        store.change_chat(3, deleted=False)
        assert paths(store)["Deleted"] == [("Bye", 1, 1)]


@pytest.mark.daily(2)
@pytest.mark.parametrize(("version", "statements"), [(2, 1), (2, 2), (2, 4), (11, 1), (11, 7), (11, 11), (11, 13)])
def test_a_migration_that_is_killed_is_done_by_the_next_start(path: Path, version: int, statements: int) -> None:
    """The process kills itself, without any clean-up, after the n-th statement of the migration of this version."""
    shutil.copy(VERSION_2 if version == 2 else VERSION_11, path)
    expected = {2: ([2, 4], {0: "half a question"}), 11: ([3, 1], {1: "half a @note.txt"})}
    code = (
        "from specchat.app.storage import database\n"
        "real = database._migrate\n"
        "def migrate(db):\n"
        "    watch(db, database._MIGRATIONS[VERSION].__contains__)\n"
        "    real(db)\n"
        "database._migrate = migrate\n"
        "Store(path)\n"
    )
    killed_after(statements - 1, code.replace("VERSION", str(version)), path)
    with Store(path) as store:
        assert ([len(turns) for turns in paths(store).values()], store.unsent.texts()) == expected[version]


def test_what_version_7_stored_is_found_by_what_was_sent_along(path: Path) -> None:
    shutil.copy(VERSION_7, path)
    with Store(path) as store:
        assert store.notice is None
        (chat,) = store.chats()
        assert (chat.title, chat.system, chat.thinking) == ("Tea", "Be brief.", True)
        assert paths(store) == {"Tea": [("What is in @src/tea.py", 1, 1), ("And this? [pasted 3 lines · 40 B]", 1, 1)]}
        while store.search.update():
            pass
        first, reply, second = store.messages(chat.id)
        assert reply.model == "smollm2-135m"
        assert [one.name for each in (first, second) for one in each.attachments] == [
            "src/tea.py", "[pasted 3 lines · 40 B]",
        ]  # fmt: skip
        assert [(hit.message_id, hit.role) for hit in store.search.find("oolong")] == [(first.id, ATTACHED)]
        assert [(hit.message_id, hit.role) for hit in store.search.find("gyokuro sencha")] == [(second.id, ATTACHED)]
        assert [(hit.message_id, hit.role) for hit in store.search.find("brews")] == [(reply.id, "assistant")]


def test_the_thinking_that_version_9_stored_in_the_text_is_told_from_the_answer(path: Path) -> None:
    shutil.copy(VERSION_9, path)
    expected = [
        ("Why?", "The moon.", "Its pull."),
        ("And the sun?", "Half as much.", "Less so."),  # the prompt had the opening mark
        ("Both?", "Spring tides", ""),  # stopped while it thought
        ("Go on", "Neap", "They differ"),  # begins with rounds of another reply
        ("Plainly?", "", "The tag <think> is one</think>."),
        ("By channel?", "Hm", "Yes"),
        ("Killed?", "Ha", ""),
    ]
    with Store(path) as store:
        (chat,) = store.chats()
        for events in (True, False):
            messages = store.messages(chat.id, events=events)
            turns = stored_conversation(chat, messages, None if events else store.events).prompts
            for whole in (False, True):  # as stored, and of the rounds
                assert all(turn.reply.loaded is whole for turn in turns)
                assert [(turn.text, turn.reply.thinking, turn.reply.text) for turn in turns] == expected
                assert all(turn.reply.rounds for turn in turns)
            assert [turn.reply.thought.there for turn in turns] == [bool(thought) for _, thought, _ in expected]
        copy = store.fork_chat([message.id for message in store.messages(chat.id)], "Copy")
        turns = stored_conversation(copy, store.messages(copy.id)).prompts
        assert [(turn.text, turn.reply.thinking, turn.reply.text) for turn in turns] == expected
        assert store.replies.exchange(2)[1].endswith("Its pull.")


def test_what_version_11_stored_is_read_as_parts(path: Path) -> None:
    shutil.copy(VERSION_11, path)
    with Store(path) as store:
        assert store.notice is None
        tides, marked = store.chats()
        assert (tides.title, tides.pinned, tides.system, tides.thinking) == ("Tides", True, "Be brief.", True)
        messages = store.messages(tides.id)
        assert [(each.role, each.thinking, each.content) for each in messages] == [
            ("user", "", "Why are there tides?"),
            ("user", "", "Why are there two tides a day? @moon.txt"),
            ("assistant", "", "The moon."),
            ("assistant", "Near side, far side.", "Its pull differs."),
            ("assistant", "", "and w00000 and w00001 "),
            ("user", "", "And the sun?"),
            ("assistant", "Half as", ""),
            ("user", "", "Elsewhere"),
            ("assistant", "", ""),
            ("user", "", "Waiting"),
        ]
        assert [each.finish_reason for each in messages if each.role == "assistant"] == ["eos"] * 3 + [None, "error"]
        assert [part.kind for part in messages[3].parts] == [PartKind.THINKING, PartKind.TEXT]
        assert [(each.name, each.text, each.tokens) for each in messages[1].attachments] == [
            ("moon.txt", "The moon pulls.", 5), ("[pasted 2 lines · 9 B]", "one\ntwo\n", None),
        ]  # fmt: skip
        conversation = stored_conversation(tides, messages)
        assert [prompt.text for prompt in conversation.root.children] == [messages[0].content, messages[1].content]
        assert [(prompt.place, prompt.reply.place) for prompt in conversation.prompts] == [(2, 1), (1, 1), (1, 1)]
        assert conversation.prompts[1].reply.running is conversation.prompts[2].reply.running is False
        other = conversation.prompts[0].replies[1]
        assert (other.model, len(other.rounds), other.text) == ("another", 2, "and w00000 and w00001 ")
        (answer,) = stored_conversation(marked, store.messages(marked.id)).replies
        assert (answer.thinking, answer.text, len(answer.rounds)) == ("Hm.", "Yes", 4)
        assert store.prompts(3) == ["Elsewhere", "Waiting", "So?"]
        assert [hit.message_id for hit in store.search.find("far side")] == [4]
        store.take_back(8)
        store.append_rounds(7, message_parts(" much", " of it"), [])
        assert [each.thinking + "|" + each.content for each in store.messages(tides.id)][6:] == [
            "Half as of it| much",
            "|Waiting",
        ]
        store.change_chat(2, deleted=False)
        assert paths(store)["Gone"] == [("Bye", 1, 1)]


@pytest.mark.parametrize("file", [VERSION_2, VERSION_9, VERSION_11], ids=lambda file: file.stem)
def test_replies_from_before_constraints_are_exported_and_imported(path: Path, file: Path) -> None:
    shutil.copy(file, path)
    with Store(path) as store:
        for chat in store.chats():
            conversation = stored_conversation(chat, store.messages(chat.id))
            replies = [reply for prompt in conversation.prompts for reply in prompt.replies]
            assert {reply.constraint for reply in replies} <= {None}
            assert as_markdown(conversation, "").count("\n## ") >= len(conversation.prompts)
            ((_, imported),), problems = read_chats(as_json(conversation, ""))
            assert not problems
            assert len(imported) == len(conversation.prompts) + len(replies)
