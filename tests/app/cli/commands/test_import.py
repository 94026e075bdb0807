"""`specchat import`: whole chats come in with all of their versions, the rest is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.chat.exchange import as_json, read_chats
from specchat.app.chat.stored_conversation import stored_conversation
from specchat.app.paths import database_file
from specchat.app.storage.store import Store, StoredMessage
from specchat.app.ui.rendering.reply_notes import note_lines
from tests.app.cli.commands.command import command
from tests.app.storage.helpers import killed_after
from tests.app.storage.test_migrations import VERSION_2


def node(role: str, parent: str, *parts: Any, model: str | None = None) -> dict[str, Any]:
    """A node of ChatGPT's tree."""
    about = {"model_slug": model} if model else {}
    return {"message": {"author": {"role": role}, "content": {"parts": parts}, "metadata": about}, "parent": parent}


CHATGPT = {
    "title": "Trip", "create_time": 1_700_000_000.5, "update_time": 1_700_000_100.5, "current_node": "a2",
    "mapping": {
        "root": {"message": None, "parent": None},
        "s": node("system", "root", "Be brief."),
        "u": node("user", "s", "Where to?"),
        "a1": node("assistant", "u", "Porto"),
        "t": node("tool", "u", "…"),
        "a2": node("assistant", "t", "Lisbon", {"image": 1}, model="gpt-4o"),
        "u2": node("user", "a1", "Why?"),
    },
}  # fmt: skip
THOUGHT = '<details type="reasoning" done="true">\n<summary>Thought for 5 seconds</summary>\n> Hm.\n</details>\n'
OPEN_WEBUI = {
    "title": "Sort", "updated_at": 1_700_000_000, "created_at": float("nan"),
    "chat": {
        "title": "Sort",
        "params": {"temperature": 0.7, "top_p": 0.9, "top_k": None, "system": "Be exact.", "num_ctx": 4096},
        "history": {"currentId": "2", "messages": {
            "1": {"id": "1", "parentId": None, "role": "user", "content": [{"type": "text", "text": "Sort a list"}]},
            "2": {"id": "2", "parentId": "1", "role": "assistant", "content": THOUGHT + "Use sorted().",
                  "model": "llama3:8b"},
        }},
    },
}  # fmt: skip


def shown(conversation: Conversation) -> list[tuple[str, str]]:
    return [(turn.text, turn.reply.text if turn.reply else "") for turn in conversation.prompts]


def stored() -> dict[str, Conversation]:
    with Store(database_file()) as store:
        return {chat.title: stored_conversation(chat, store.messages(chat.id)) for chat in store.chats()}


def write(folder: Path, value: Any) -> Path:
    path = folder / "export.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_a_tree_of_chatgpt_comes_in_whole(tmp_path: Path) -> None:
    done = command("import", write(tmp_path, [CHATGPT]))
    assert (done.code, done.err) == (0, "")
    trip = stored()["Trip"]
    assert trip.system == "Be brief."
    assert shown(trip) == [("Where to?", "Lisbon")]
    assert [reply.text for reply in trip.prompts[0].replies] == ["Porto", "Lisbon"]
    assert {each.text for each in trip.root.descendants() if isinstance(each, Prompt)} == {"Where to?", "Why?"}
    assert [reply.origin for reply in trip.prompts[0].replies] == [[], ["gpt-4o"]]


def test_chats_of_open_webui_come_in(tmp_path: Path) -> None:
    assert command("import", write(tmp_path, [OPEN_WEBUI])).code == 0
    sort = stored()["Sort"]
    assert (shown(sort), sort.system) == ([("Sort a list", "Use sorted().")], "Be exact.")
    (reply,) = sort.prompts[0].replies
    assert reply.thinking == "Hm."
    assert reply.origin == ["llama3:8b", "temperature 0.7 · top-p 0.9"]
    assert note_lines(reply, 80) == [("llama3:8b · temperature 0.7 · top-p 0.9", False)]


@pytest.mark.parametrize("params", [None, {"temperature": "hot"}, {"temperature": 0.7, "top_p": 3}])
def test_sampling_that_a_file_does_not_state_is_not_invented(tmp_path: Path, params: dict[str, Any] | None) -> None:
    chat = {**OPEN_WEBUI["chat"], "params": params}
    assert command("import", write(tmp_path, [{**OPEN_WEBUI, "chat": chat}])).code == 0
    (reply,) = stored()["Sort"].prompts[0].replies
    assert (reply.text, reply.origin) == ("Use sorted().", ["llama3:8b"])


def test_our_own_export_comes_back_with_its_rounds(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    path.write_bytes(VERSION_2.read_bytes())
    with Store(path) as store:
        chat = next(chat for chat in store.chats() if chat.title.startswith("Lisbon"))
        before = stored_conversation(chat, store.messages(chat.id))
    assert command("import", write(tmp_path, as_json(before, "m"))).code == 0
    after = stored()[before.title]
    assert shown(after) == shown(before)
    for old, new in zip(before.prompts[:3], after.prompts[:3], strict=True):
        assert [reply.rounds for reply in new.replies] == [reply.rounds for reply in old.replies]
        assert new.place == old.place


HUGE = {"kind": "file", "name": "a.txt", "text": "a", "tokens": 1 << 63}


def said(role: str, parent: str, content: dict[str, Any], recipient: str = "all", **about: Any) -> dict[str, Any]:
    """A node of ChatGPT's tree as its exports of today have it."""
    message = {"author": {"role": role, "name": None}, "content": content, "recipient": recipient, "metadata": about}
    return {"message": message, "parent": parent}


def text(*parts: Any) -> dict[str, Any]:
    kind = "multimodal_text" if any(isinstance(part, dict) for part in parts) else "text"
    return {"content_type": kind, "parts": parts}


RECORDING = {"content_type": "audio_asset_pointer", "asset_pointer": "sediment://file_1", "format": "wav"}
IMAGE = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://file-2", "width": 64}
WHERE = "\ue200cite\ue202turn0search2\ue202turn0search5\ue201"
DOCUMENT = {"name": "Plan", "type": "document", "content": "Day one"}
DANUBE = '\ue200entity\ue202["river","Danube",0]\ue201'
HEARD = {"content_type": "audio_transcription", "text": "Say it.", "direction": "in"}
THOUGHTS = {"content_type": "thoughts", "thoughts": [{"summary": "Think", "content": "Hm."}]}
LINKS = [{"matched_text": WHERE, "alt": "([D](https://example.org))"}, {"matched_text": " ", "alt": None}]
TODAY = {
    "conversation_id": "6719c1f0-0000-8000-9000-000000000001", "title": "Today", "update_time": 1_700_000_000.0,
    "current_node": "b4",
    "mapping": {
        "a1": said("user", "", text(HEARD, RECORDING)),
        "h1": said("assistant", "a1", THOUGHTS),
        "h2": said("assistant", "h1", {"content_type": "reasoning_recap", "content": "Thought for 8s"}),
        "h3": said("assistant", "h2", {"content_type": "code", "text": '{"query": "x"}'}, "web.run"),
        "h4": said("tool", "h3", {"content_type": "tether_quote", "text": "a page", "url": "x"}),
        "b1": said("assistant", "h4", text(HEARD | {"text": "I say it.", "direction": "out"})),
        "a2": said("user", "b1", text(IMAGE, "What is this?"), attachments=[{"name": "a.pdf", "mime_type": "any"}]),
        "b2": said("assistant", "a2", text(f"The {DANUBE} flows. {WHERE} On\ue200cite\ue202turn1view0\ue201."),
                   content_references=LINKS),
        "a3": said("user", "b2", text("Draw and write.")),
        "h5": said("tool", "a3", text(IMAGE)),
        "b3": said("assistant", "h5", {"content_type": "code", "text": json.dumps(DOCUMENT)}, "canmore.create_textdoc"),
        "a4": said("user", "b3", text("Only listen."), is_visually_hidden_from_conversation=False),
        "h6": said("user", "a4", text("hidden"), is_visually_hidden_from_conversation=True),
        "b4": said("assistant", "h6", {"content_type": "code", "language": "python", "text": "print(1)"}),
    },
}  # fmt: skip


def test_what_chatgpt_exports_today_comes_in_as_it_was_shown(tmp_path: Path) -> None:
    done = command("import", write(tmp_path, [TODAY]))
    assert (done.code, done.err) == (0, "")
    chat = stored()["Today"]
    assert shown(chat) == [
        ("Say it.", "I say it."),
        ("[image]\n\nWhat is this?\n\n[file: a.pdf]", "The Danube flows. ([D](https://example.org)) On."),
        ("Draw and write.", "[image]\n\n[canvas: Plan]\n\nDay one"),
        ("Only listen.", "```python\nprint(1)\n```"),
    ]
    assert [turn.reply and turn.reply.thinking for turn in chat.prompts] == ["Think\n\nHm.", "", "", ""]


CLAUDE = {
    "uuid": "5c1d0f3e-0000-4000-8000-000000000001", "name": "Knots", "updated_at": "2023-11-14T22:13:20.000000Z",
    "chat_messages": [
        {"uuid": "m1", "sender": "human", "text": "Which knot?", "content": [{"type": "text", "text": "Which knot?"}],
         "attachments": [{"file_name": "rope.txt", "extracted_content": "ten metres"}],
         "files": [{"file_name": "a.png"}]},
        {"uuid": "m2", "sender": "assistant", "text": "", "parent_message_uuid": "m1",
         "content": [{"type": "thinking", "thinking": "Ropes."}, {"type": "tool_use", "name": "x"},
                     {"type": "text", "text": "Bowline"}]},
    ],
}  # fmt: skip


def test_chats_of_claude_come_in(tmp_path: Path) -> None:
    done = command("import", write(tmp_path, [CLAUDE]))
    assert (done.code, done.err) == (0, "")
    knots = stored()["Knots"]
    assert shown(knots) == [("Which knot?\n\n[file: a.png]", "Bowline")]
    assert knots.prompts[0].reply is not None
    assert knots.prompts[0].reply.thinking == "Ropes."
    assert [(each.name, each.text) for each in knots.prompts[0].attachments] == [("rope.txt", "ten metres")]
    with Store(database_file()) as store:
        assert store.chats()[0].updated_at == 1_700_000_000


def again(tmp_path: Path, exported: Any) -> tuple[list[StoredMessage], str]:
    """Import a file into the only chat; returns the chat's messages and what the command says."""
    done = command("import", write(tmp_path, exported))
    with Store(database_file()) as store:
        (chat,) = store.chats()
        return store.messages(chat.id), done.out.strip().rpartition("(")[2]


def test_what_was_imported_before_is_not_imported_twice(tmp_path: Path) -> None:
    own = {"format": "specchat-chat", "title": "Own", "turns": [{"prompt": "Hi", "replies": [], "chosen": None}]}
    for exported in (TODAY, CHATGPT, CLAUDE, OPEN_WEBUI, own):
        before, _ = again(tmp_path, exported)
        assert again(tmp_path, [exported, exported]) == (before, "2 unchanged)")
        with Store(database_file()) as store:
            store.change_chat(store.chats()[0].id, deleted=True)
    again(tmp_path, TODAY)  # a deleted chat comes back


def test_an_import_adds_what_is_new_and_keeps_what_the_user_made(tmp_path: Path) -> None:
    again(tmp_path, CHATGPT)
    (trip,) = stored().values()
    assert again(tmp_path, json.loads(as_json(trip, "")))[1] == "1 unchanged)"  # an own export of that chat
    newer = {**CHATGPT, "mapping": {**CHATGPT["mapping"], "u3": node("user", "a2", "When?")}, "current_node": "u3"}
    assert again(tmp_path, newer)[1] == "1 updated)"
    assert [prompt for prompt, _ in shown(stored()["Trip"])] == ["Where to?", "When?"]
    with Store(database_file()) as store:
        (chat,) = store.chats()
        reply = next(each for each in store.messages(chat.id) if each.content == "Lisbon")
        store.add_message(chat.id, "user", "And where to eat?", parent=reply.id)
        store.change_chat(chat.id, title="My trip")
    newest = {**newer, "mapping": {**newer["mapping"], "a3": node("assistant", "u3", "In May")}, "update_time": 1.9e9}
    messages, told = again(tmp_path, newest)
    assert told == "1 updated)"
    trip = stored()["My trip"]
    assert [prompt for prompt, _ in shown(trip)] == ["Where to?", "And where to eat?"]
    assert [each.content for each in messages if each.content in ("When?", "In May")] == ["When?", "In May"]


BROKEN: list[Any] = [
    {"title": "No messages", "mapping": {}},
    {"title": "No text", "chat": {"messages": [{"role": "user", "content": 7}]}},
    {"title": "A circle", "mapping": {"a": {"parent": "b", "message": None}, "b": {"parent": "a", "message": None}}},
    {"title": "Reply first", "chat": {"messages": [{"role": "assistant", "content": "hi"}]}},
    {"title": "Something else"},
    {"format": "specchat-chat", "turns": [{"prompt": "hi", "attachments": [HUGE], "replies": [], "chosen": None}]},
    "text",
    None,
]


def test_what_is_whole_comes_in_and_the_rest_is_named(tmp_path: Path) -> None:
    done = command("import", write(tmp_path, [*BROKEN[:3], OPEN_WEBUI, *BROKEN[3:], CHATGPT]))
    assert done.code == 0
    assert sorted(stored()) == ["Sort", "Trip"]
    lines = done.err.strip().split("\n")
    assert len(lines) == len(BROKEN)
    assert "chat 1 (No messages) is left out: it has no messages" in lines[0]
    assert "chat 3 (A circle) is left out" in lines[2]
    assert "chat 7 is left out: the number of tokens of an attachment is out of range" in lines[5]


def test_a_file_that_breaks_off_gives_the_chats_before_the_break() -> None:
    whole = json.dumps([OPEN_WEBUI, CHATGPT, OPEN_WEBUI])
    chats, problems = read_chats(whole[:-40])
    assert [chat.title for chat, _ in chats] == ["Sort", "Trip"]
    assert problems == ["the file is damaged or ends after chat 2: the rest is left out"]
    for cut in range(len(whole)):
        read_chats(whole[:cut])


@pytest.mark.parametrize("text", ["", "hello", "{}", "[", "[1]"])
def test_a_file_without_a_chat_is_refused(tmp_path: Path, text: str) -> None:
    done = command("import", write(tmp_path, text))
    assert done.code == 2
    assert "nothing was imported" in done.err
    assert stored() == {}


def test_a_conversation_of_many_thousand_messages_comes_in(tmp_path: Path) -> None:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": f"message {n}"} for n in range(6000)]
    assert command("import", write(tmp_path, {"title": "long", "chat": {"messages": messages}})).code == 0
    assert len(stored()["long"].prompts) == 3000


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "job",
    [
        "import_chats(s, ((Chat(0, str(n), 0.0), [StoredMessage(0, 'user', message_parts('a'))]) for n in range(50)))",
        "s.fork_chat([1, 2, 3, 4], 'fork')",
        "s.add_message(1, 'user', 'edited', parent=2)",
    ],
    ids=["import", "fork", "edit"],
)
def test_a_kill_in_the_middle_leaves_what_was_there(tmp_path: Path, job: str) -> None:
    """The process ends itself, without any clean-up, after each statement that writes."""
    path = tmp_path / "specchat.db"
    code = (
        "from specchat.app.storage.imports import import_chats\n"
        "from specchat.app.storage.store import Chat, StoredMessage\n"
        "from specchat.engine import message_parts\n"
        "s = Store(path)\n"
        "watch(s._file._db, lambda statement: statement.startswith(('INSERT', 'UPDATE', 'COMMIT')))\n"
        f"{job}\n"
    )
    for statements in (0, 1, 2):
        path.write_bytes(VERSION_2.read_bytes())
        with Store(path) as store:
            before = [(chat, store.messages(chat.id)) for chat in store.chats()]
        killed_after(statements, code, path)
        with Store(path) as store:
            assert store.notice is None
            assert [(chat, store.messages(chat.id)) for chat in store.chats()] == before


def test_chats_keep_their_dates_and_models(tmp_path: Path) -> None:
    command("import", write(tmp_path, [CHATGPT, OPEN_WEBUI, {**CHATGPT, "title": "Damaged", "update_time": "soon"}]))
    with Store(database_file()) as store:
        dates = {chat.title: chat.updated_at for chat in store.chats()}
        assert dates == {"Trip": 1_700_000_100.5, "Sort": 1_700_000_000, "Damaged": 1_700_000_000.5}
        chat = store.create_chat("Own")
        prompt = store.add_message(chat.id, "user", "Hi")
        store.add_message(chat.id, "assistant", "Hello", parent=prompt, model="qwen3-0.6b")
        conversation = stored_conversation(chat, store.messages(chat.id))
        store.change_chat(chat.id, deleted=True)
    command("import", write(tmp_path, as_json(conversation, "")))
    with Store(database_file()) as store:
        again = store.chats()[0]
        assert (again.title, again.updated_at) == ("Own", chat.updated_at)
        assert store.messages(again.id)[1].model == "qwen3-0.6b"
