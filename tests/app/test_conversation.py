"""A conversation is a tree: the path leads to the selected leaf, and waiting prompts stay at its end."""

import pytest

from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.chat.reply import Reply


def path(conversation: Conversation) -> str:
    """The prompts of the path, with the place of each reply."""
    return " ".join(f"{each.text}{each.reply.place if each.reply else '?'}" for each in conversation.prompts)


@pytest.fixture
def talk() -> Conversation:
    """Two answered prompts, a and b; rows 1 to 4."""
    messages = Prompt("a"), Reply(), Prompt("b"), Reply()
    for row, message in enumerate(messages, start=1):
        message.row = row
    return Conversation(path=messages)


def test_waiting_prompts_stay_at_the_end_and_follow_the_first_reply(talk: Conversation) -> None:
    c, d = Prompt("c"), Prompt("d")
    talk.append(c)
    talk.append(d)
    other = Reply()
    talk.add_sibling(talk.prompts[0].replies[0], other)
    assert (path(talk), c.parent) == ("a2 c? d?", other)
    edited = Prompt("C")
    talk.add_sibling(c, edited)
    assert (path(talk), edited.place, d.parent) == ("a2 C? d?", 2, edited)
    talk.begin_replies(edited, [Reply()])
    assert (path(talk), d.parent) == ("a2 C1 d?", edited.reply)
    assert talk.drop_waiting() == [d]
    talk.remove(edited)
    assert path(talk) == "a2 c?"
    assert talk.drop_waiting() == [c]
    assert (path(talk), talk.leaf) == ("a2", other)


def test_lanes_that_share_a_prompt_become_one_tree(talk: Conversation) -> None:
    lane = Conversation(path=[Prompt("a"), Reply(), Prompt("x")])
    talk.join(lane)
    assert [reply.place for reply in talk.prompts[0].replies] == [1, 2]
    talk.select(talk.prompts[0].replies[0])
    assert path(talk) == "a1 x?"
