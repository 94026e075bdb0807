"""The engine counts the tokens of a prompt before it is sent, by the tokenizer that will read it."""

import time

from specchat.engine import Admitted, Counted, Message, Request
from tests.engine.tiny import tiny_engine, tiny_model


def test_the_count_is_that_of_the_prompt_when_it_is_read() -> None:
    messages = (Message("user", "hello"), Message("assistant", "ho"), Message("user", "what else?"))
    with tiny_engine(tiny_model()) as engine:
        engine.wait_ready()
        engine.count(messages)
        counted: list[Counted] = []
        while not counted:
            time.sleep(0.01)
            counted = [event for event in engine.drain() if isinstance(event, Counted)]
        events = list(engine.stream(Request("r", messages, max_tokens=2)))
    assert counted[0].tokens == next(e.prompt_tokens for e in events if isinstance(e, Admitted))
