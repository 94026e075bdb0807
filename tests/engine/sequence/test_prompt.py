"""Prompts: chat templates, plain text and token ids."""

import pytest

from specchat.engine.errors import EngineError
from specchat.engine.request import Message, Request
from specchat.engine.sequence.prompt import encode, plain_template, stops_of
from tests.engine.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()


def test_prompts_go_through_the_template_or_stand_as_they_are() -> None:
    turns = (Message("user", "hi"), Message("assistant", "yes"), Message("user", "so"))
    by_template = encode(Request("r", turns), TOKENIZER)
    assert TOKENIZER.decode(by_template) == "[user]hi[assistant]yes[user]so[assistant]"
    assert encode(Request("r", prompt="hi"), TOKENIZER) == TOKENIZER.encode("hi")
    assert encode(Request("r", prompt_ids=(1, 2)), TOKENIZER) == [1, 2]


def test_a_model_without_template_gets_labelled_turns() -> None:
    bare = tiny_tokenizer()
    bare.chat_template = None
    assert bare.decode(encode(Request("r", (Message("user", "hi"),)), bare)) == "User: hi\nAssistant:"
    assert plain_template([Message("system", "be kind")]) == "System: be kind\nAssistant:"


def test_a_template_that_refuses_is_an_error_with_its_words() -> None:
    strict = tiny_tokenizer()
    strict.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(EngineError, match="roles must alternate"):
        encode(Request("r", (Message("user", "hi"),)), strict)


def test_the_labels_of_the_plain_template_end_a_reply() -> None:
    bare = tiny_tokenizer()
    bare.chat_template = None
    chat = Request("r", (Message("user", "hi"),), stop=("x",))
    assert stops_of(chat, bare) == ("x", "\nUser:", "\nAssistant:", "\nSystem:")
    assert stops_of(chat, TOKENIZER) == stops_of(Request("r", prompt="hi", stop=("x",)), bare) == ("x",)
