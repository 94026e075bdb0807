"""Text and thinking in the forms in which servers send them: texts, lists of parts, and fields of several names."""

from typing import Any

import pytest

from specchat.engine import FinishReason
from tests.app.recorded import replied
from tests.app.sources.servers import recorded as shapes
from tests.app.sources.servers.recorded import CHAT, Recorded, answered


def said(*deltas: dict[str, Any]) -> Any:
    """The reply to a stream with these deltas, and its last event."""
    stream = [shapes.chunk(choice={"delta": delta}) for delta in deltas]
    with Recorded(shapes.PLAIN, {CHAT: [*stream, shapes.chunk(None, "stop"), shapes.last_chunk(1, 2)]}) as server:
        events = answered(server.url)
    return replied(events), events[-1]


def part(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


@pytest.mark.parametrize(
    "contents",
    [
        ["Hi", " there"],
        [[part("Hi")], [part(" there")]],
        [[part("Hi"), part(" there", annotations=[])]],
        [[{"type": "output_text", "text": "Hi"}], " there", None, ""],
        [["Hi", " ", "there"]],
        [part("Hi there")],
        [[{"type": "refusal", "refusal": "Hi there"}, {"type": "image_url", "image_url": {"url": "x"}}, {}]],
    ],
)
def test_content_may_be_a_list_of_parts(contents: list[Any]) -> None:
    reply, end = said(*({"content": each} for each in contents))
    assert (reply.text, end.reason) == ("Hi there", FinishReason.EOS)
    assert not reply.thought.there


@pytest.mark.parametrize(
    "deltas",
    [
        [{"reasoning": "Hm."}, {"content": "Yes"}],
        [{"reasoning_content": "Hm.", "content": None}, {"reasoning_content": None, "content": "Yes"}],
        [{"reasoning": "Hm.", "reasoning_content": "Hm."}, {"content": "Yes", "reasoning": ""}],
        [{"reasoning": "Hm.", "reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]}, {"content": "Yes"}],
        [{"reasoning_details": [{"type": "reasoning.summary", "summary": "Hm."}], "content": ""}, {"content": "Yes"}],
        [{"thinking_blocks": [{"type": "thinking", "thinking": "Hm.", "signature": ""}]}, {"content": "Yes"}],
        [{"content": [{"type": "thinking", "thinking": [part("Hm")]}]}, {"content": [{"type": "thinking", "thinking": [
            part(".")], "closed": True}]}, {"content": [part("Yes")]}],
        [{"content": [{"type": "thinking", "thinking": "Hm."}, part("Yes")]}],
        [{"content": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}, part("Yes")]}],
        [{"reasoning": "Hm.", "content": "Yes"}],
    ],
)  # fmt: skip
def test_thinking_is_recognised_under_every_name(deltas: list[dict[str, Any]]) -> None:
    reply, end = said(*deltas)
    assert end.reason is FinishReason.EOS
    assert reply.thought.there
    assert (reply.thinking.strip(), reply.text) == ("Hm.", "Yes")


@pytest.mark.parametrize("content", [5, [7], [[{"type": "text", "text": 3}]], True])
def test_content_of_another_kind_is_refused(content: Any) -> None:
    _, end = said({"content": content})
    assert end.reason is FinishReason.ERROR
    assert "something that is not a chunk of a reply" in end.message
