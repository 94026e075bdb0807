"""The parts of a reply from its records."""

from dataclasses import replace

from specchat.app.chat.parts import joined, parts_of
from specchat.engine import Call, Finished, FinishReason, MessagePart, PartKind
from tests.engine.records import make_round

CALLS = (Call("c1", "look", '{"at": "sea"}'), Call("c2", "look", "{}"))
PARTS = tuple(MessagePart(PartKind.CALL, call.arguments, call.name, call.id) for call in CALLS)


def test_calls_are_parts_after_the_text_of_their_round() -> None:
    said = replace(make_round(drafted=0), calls=CALLS)
    text = MessagePart(PartKind.TEXT, said.text)
    assert tuple(parts_of(said)) == (text, *PARTS)
    assert tuple(parts_of(replace(said, thinking=(True,)))) == (replace(text, kind=PartKind.THINKING), *PARTS)
    assert tuple(parts_of(Finished("r", FinishReason.EOS, "", "", 0.0, calls=CALLS))) == PARTS
    assert tuple(joined([text, text, *PARTS, text])) == (replace(text, text=said.text * 2), *PARTS, text)
