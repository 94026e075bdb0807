"""Prompts: chat templates, plain text and token ids; replies: whole characters, stop strings, rejected tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from specchat.engine.models.tokenizer import PlainTokenizer
from specchat.engine.request import Message, Request
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.prompt import encode, plain_template, stops_of
from tests.engine.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
_NAMES = ["x", *(f"<0x{byte:02X}>" for byte in range(256))]
_BYTES = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(_NAMES)}, merges=[], byte_fallback=True))
_BYTES.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
FALLBACK = PreTrainedTokenizerFast(tokenizer_object=_BYTES)


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


def test_the_labels_of_the_plain_template_end_a_reply() -> None:
    bare = tiny_tokenizer()
    bare.chat_template = None
    chat = Request("r", (Message("user", "hi"),), stop=("x",))
    assert stops_of(chat, bare) == ("x", "\nUser:", "\nAssistant:", "\nSystem:")
    assert stops_of(chat, TOKENIZER) == stops_of(Request("r", prompt="hi", stop=("x",)), bare) == ("x",)


def grow(text: str, stop: tuple[str, ...] = ()) -> tuple[list[str], Detokenizer]:
    """The pieces of a text fed byte by byte, the tail included."""
    reply = Detokenizer(TOKENIZER, stop)
    pieces = []
    for token in TOKENIZER.encode(text):
        pieces.append(reply.add(token))
        if reply.stopped:
            break
    return [*pieces, reply.tail()], reply


def test_a_character_comes_out_whole() -> None:
    pieces, _ = grow("é€😀")
    assert [piece for piece in pieces if piece] == ["é", "€", "😀"]


@pytest.mark.parametrize(
    ("tokens", "pieces"),
    [
        (["<0x0A>", "<0xE2>", "x"], ["\n", "", "�x", ""]),
        (["<0x0A>", "<0xC3>", "<0xA9>", "x"], ["\n", "", "é", "x", ""]),
        (["x", "<0x0A>", "<0xC3>"], ["x", "\n", "", "�"]),
    ],
)
def test_a_byte_that_is_no_character_is_marked_though_it_changes_the_text_before_it(
    tokens: list[str], pieces: list[str]
) -> None:
    """Tokenizers of Llama 2, Mistral and Gemma decode bytes that stand next to each other as one text."""
    reply = Detokenizer(FALLBACK, ())
    assert [*map(reply.add, FALLBACK.convert_tokens_to_ids(tokens)), reply.tail()] == pieces


@pytest.mark.parametrize(
    ("tokenizer", "tokens", "pieces"),
    [
        (TOKENIZER, ["ÿ"] * 4, ["�"] * 4),
        (TOKENIZER, ["â", "Ĥ", "â", "a"], ["", "", "�", "�a"]),
        (TOKENIZER, ["ð", "<eos>", "Ł", "ĺ", "Ģ"], ["", "", "", "", "😀"]),
        (FALLBACK, ["<0xFF>"] * 3 + ["<0x41>", "x"], ["�"] * 4 + ["x"]),
        (FALLBACK, ["<0xE2>", "<0x82>", "<0xFF>", "<0xC3>", "<0xA9>"], ["", "", "���", "", "��"]),
    ],
)
def test_bytes_that_cannot_become_a_character_are_released_at_once(
    tokenizer: PreTrainedTokenizerFast, tokens: list[str], pieces: list[str]
) -> None:
    reply, ids = Detokenizer(tokenizer, ()), tokenizer.convert_tokens_to_ids(tokens)
    assert [reply.add(token) for token in ids] == pieces
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=True)


@given(st.lists(st.one_of(st.integers(0, 256), st.sampled_from(TOKENIZER.encode("é€😀"))), max_size=12))
def test_pieces_of_any_bytes_concatenate_to_the_text(ids: list[int]) -> None:
    reply = Detokenizer(TOKENIZER, ())
    assert "".join([*map(reply.add, ids), reply.tail()]) == TOKENIZER.decode(ids, skip_special_tokens=True)


def test_a_reply_to_a_text_keeps_its_first_space() -> None:
    """Tokenizers of SentencePiece leave out the space before a text, and a completion is not the whole text."""
    names = ["▁", "▁is", "▁Paris", "▁▁"]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    for after, expected in (([1], [" Paris", " Paris", "  "]), ([], ["Paris", " Paris", "  "])):
        reply = Detokenizer(PlainTokenizer(tokenizer), (), after=after)
        assert [reply.add(token) for token in (2, 2, 3)] == expected


@given(st.text(alphabet="ab", max_size=20), st.text(alphabet="ab", min_size=1, max_size=4))
def test_a_reply_ends_before_its_first_stop_string(text: str, stop: str) -> None:
    pieces, reply = grow(text, (stop,))
    assert "".join(pieces) == text.split(stop)[0]
    assert reply.stopped == (stop in text)


def test_the_earliest_of_several_stop_strings_counts() -> None:
    pieces, _ = grow("one two three", ("three", "two"))
    assert "".join(pieces) == "one "


def test_text_that_may_become_a_stop_string_is_held_back_only_while_it_may() -> None:
    reply = Detokenizer(TOKENIZER, ("END",))
    released = [reply.add(token) for token in TOKENIZER.encode("aENb")]
    assert released == ["a", "", "", "ENb"]


def test_alternatives_do_not_change_the_reply() -> None:
    reply = Detokenizer(TOKENIZER, ())
    ids = TOKENIZER.encode("ab")
    reply.add(ids[0])
    assert reply.alternative([ids[1], 256], after=ids[0]) == ["b", "<eos>"]
    assert reply.add(ids[1]) == "b"


def test_names_of_all_tokens_are_those_of_each() -> None:
    """The last ones have no text, or are not in the vocabulary."""
    reply = Detokenizer(TOKENIZER, ())
    assert reply.names(260) == [reply.name(token) for token in range(260)]
    assert reply.name(256) == "<eos>"
