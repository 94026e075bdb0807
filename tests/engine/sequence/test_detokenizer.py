"""The detokenizer: whole characters, stop strings, text of rejected tokens."""

from hypothesis import given
from hypothesis import strategies as st

from specchat.engine.sequence.detokenizer import Detokenizer
from tests.engine.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()


def grow(text: str, stop: tuple[str, ...] = ()) -> tuple[list[str], Detokenizer]:
    """The pieces of a text fed byte by byte, the tail included."""
    reply = Detokenizer(TOKENIZER, stop)
    pieces = []
    for token in TOKENIZER.encode(text):
        pieces.append(reply.add(token))
        if reply.stopped:
            break
    return [*pieces, reply.tail()], reply


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=30))
def test_pieces_concatenate_to_the_text(text: str) -> None:
    assert "".join(grow(text)[0]) == text


def test_a_character_comes_out_whole() -> None:
    pieces, _ = grow("é€😀")
    assert [piece for piece in pieces if piece] == ["é", "€", "😀"]


def test_half_a_character_at_the_end_is_marked_not_lost() -> None:
    reply = Detokenizer(TOKENIZER, ())
    for token in TOKENIZER.encode("a😀")[:-1]:
        reply.add(token)
    assert reply.tail() == "�"


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
