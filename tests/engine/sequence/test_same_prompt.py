"""Several requests of one prompt: it is read once, and each reply is what it would be alone."""

from specchat.engine import Prefilled, Request, Sampling
from tests.engine.tiny import ids_of, run_together, tiny_engine

PROMPT = tuple(range(97, 117)) * 5


def test_a_prompt_that_is_asked_several_times_at_once_is_read_once() -> None:
    requests = [
        Request(f"r{n}", prompt_ids=PROMPT, max_tokens=12, sampling=Sampling(temperature=1.0, seed=n)) for n in range(4)
    ]
    with tiny_engine(chunk=16) as engine:
        together = run_together(engine, requests)
    chunks = [sum(isinstance(event, Prefilled) for event in events) for events in together]
    assert sorted(chunks) == [1, 1, 1, 7]
    replies = [ids_of(events) for events in together]
    assert len({tuple(reply) for reply in replies}) == 4
    for request, reply in zip(requests, replies, strict=True):
        with tiny_engine(chunk=16) as alone:
            assert ids_of(list(alone.stream(request))) == reply
