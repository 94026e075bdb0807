"""Thinking in a reply: which tokens it takes, what is answered after it, and the acceptance on both sides."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.chat.exchange import as_json, as_markdown, read_chats
from specchat.app.chat.reply import Reply
from specchat.app.chat.stored_conversation import stored_conversation
from specchat.app.chat.web_page import chat_data
from specchat.app.storage.imports import import_chats
from specchat.app.storage.store import Store
from specchat.engine import (
    Admitted,
    Fate,
    Finished,
    FinishReason,
    Message,
    Round,
    Thinking,
    message_parts,
    to_json,
)
from tests.app.recorded import replied
from tests.app.thinking import MARKERS, thinking_trace


def written(pieces: Iterable[str], markers: Thinking | None = MARKERS) -> Reply:
    """A reply of plain tokens with these texts."""
    template = next(record for record in thinking_trace(marked=True) if isinstance(record, Round))
    said = (replace(template, number=n, last_piece=piece, at=n + 1.0) for n, piece in enumerate(pieces))
    return replied([Admitted("r", 3, 0, 0.0, 0.0, thinking=markers), *said])


def shown(reply: Reply) -> tuple[str, str]:
    """The emitted text that belongs to the thinking, and the rest, token by token."""
    texts = {True: "", False: ""}
    for index, record in enumerate(reply.rounds):
        for number, token in enumerate(record.tokens(), reply.starts[index]):
            if token.fate not in (Fate.REJECTED, Fate.DISCARDED):
                texts[reply.thought.holds(number)] += token.text
    return texts[True], texts[False]


@pytest.mark.parametrize("text", ["<thing> is a tag", "The tag <think> is one</think>.", "  <thin"])
def test_what_does_not_begin_with_the_marker_is_no_thinking(text: str) -> None:
    reply = written(list(text))
    reply.add(Finished("r", FinishReason.EOS, "", "", 99.0))
    assert not reply.thought.there
    assert reply.text == text
    assert reply.figures.thought is None


def test_markers_may_be_spread_over_tokens_and_share_them_with_the_text() -> None:
    reply = written(["\n<", "thi", "nk>Hm", ".", "</th", "ink", ">\n", "\n", "Yes", " </think> no"])
    assert shown(reply) == (reply.thinking, reply.text) == ("Hm.", "Yes </think> no")


def test_a_stored_reply_knows_its_thinking_and_one_that_broke_off_inside_has_no_answer() -> None:
    live = written(["<think>", "Hm.", "</think>", "Yes"])
    lines = [to_json(Admitted("r", 3, 0, 0.0, 0.0)), *map(to_json, live.rounds)]
    lines.append(to_json(Finished("r", FinishReason.EOS, "", "", 9.0)))
    stored = Reply.stored(message_parts("Yes", "Hm."), "eos", lambda: lines)
    assert (stored.text, stored.thinking, len(stored.rounds)) == ("Yes", "Hm.", 4)
    broken = written(["<think>", "Hm."])
    assert (broken.text, broken.thinking, broken.has_text) == ("", "Hm.", True)


def test_exports_and_the_model_get_it_separately() -> None:
    reply = written(["<think>", "Hm.\nWell.", "</think>", "Yes"])
    conversation = Conversation(path=[Prompt("So?"), reply])
    assert conversation.last_text() == "Yes"
    assert "Hm." not in as_markdown(conversation, "m")
    assert "> Hm.\n> Well.\n\nYes" in as_markdown(conversation, "m", thinking=True)
    rounds = chat_data(conversation)["replies"][0]["rounds"]
    assert [(each["tokens"][0][0], each.get("thinking")) for each in rounds] == [
        ("", [True]), ("Hm.\nWell.", [True]), ("", [True]), ("Yes", None),
    ]  # fmt: skip
    exported = json.loads(as_json(conversation, "m"))["turns"][0]["replies"][0]
    assert (exported["text"], exported["thinking"]) == ("Yes", "Hm.\nWell.")
    assert conversation.messages_with("And?")[1] == Message("assistant", "Yes", "Hm.\nWell.")


@pytest.mark.parametrize("earlier", [False, True])
def test_an_exported_chat_comes_back_with_its_thinking(earlier: bool, tmp_path: Path) -> None:
    text = as_json(Conversation(path=[Prompt("So?"), written(["<think>", "Hm.", "</think>", "\n\nYes"])]), "m")
    if earlier:  # the text had the marks, and no field of the file told of the thinking
        reply = (exported := json.loads(text))["turns"][0]["replies"][0]
        reply["text"] = "<think>Hm.</think>\n\nYes"
        del reply["thinking"]
        for record, piece in zip(reply["rounds"], ["<think>", "Hm.", "</think>", "\n\nYes"], strict=True):
            record["last_piece"] = piece
            record.pop("thinking", None)
        text = json.dumps(exported)
    chats, problems = read_chats(text)
    assert not problems
    with Store(tmp_path / "chats.db") as store:
        import_chats(store, chats)
        (chat,) = store.chats()
        (turn,) = stored_conversation(chat, store.messages(chat.id)).prompts
    assert (turn.reply.text, turn.reply.thinking, len(turn.reply.rounds)) == ("Yes", "Hm.", 4)
    assert turn.reply.thought.holds(1)
    assert not turn.reply.thought.holds(3)
