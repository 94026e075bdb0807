"""Requests that no engine can serve: each is refused in one sentence, and the others are served."""

import re
from pathlib import Path

import pytest

from specchat.engine import Engine, EngineConfig, EngineError, Finished, FinishReason, Outbox, Request
from specchat.engine.worker.assembly import assemble_loaded
from tests.engine.tiny import ask, ended, ids_of, run_together, tiny_engine, tiny_model


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request("r", prompt_ids=(97,) * 256), "256 tokens"),
        (ask("hi", drafter="oracle"), "drafter 'oracle' is not available"),
        (Request("r", prompt=""), "the prompt is empty"),
    ],
    ids=["too long", "drafter", "empty"],
)
def test_bad_requests_fail_with_a_sentence_and_others_run(engine: Engine, request_: Request, words: str) -> None:
    (finished,) = list(engine.stream(request_))
    assert finished.reason is FinishReason.ERROR
    assert words in finished.message
    assert ids_of(engine.stream(ask("fine", max_tokens=2)))


def test_a_full_queue_refuses_by_name_and_serves_the_others() -> None:
    with tiny_engine(slots=1, queue=2) as engine:
        stream = engine.stream(ask("long", "first", max_tokens=200))
        next(stream)
        results = run_together(engine, [ask("hi", f"r{i}", max_tokens=2) for i in range(5)])
        list(stream)
    refused = [events[-1].message for events in results if events[-1].reason is FinishReason.ERROR]
    assert len(refused) == 3
    assert "2 requests are waiting already" in refused[0]


BAD = {
    "half of a surrogate pair": (Request("bad", prompt="a\udcffb"), "surrogate"),
    "half of a surrogate pair in a message": (ask("a\ud800", "bad"), "surrogate"),
    "half of a surrogate pair in a stop string": (ask("a", "bad", stop=("\udfff",)), "surrogate"),
    "an id beyond the vocabulary": (Request("bad", prompt_ids=(1, 2, 999_999)), "999999 and the model has 260 tokens"),
    "a negative id": (Request("bad", prompt_ids=(1, -2)), "-2: token ids start at 0"),
    "a reply with a negative id": (Request("bad", prompt="a", reply_ids=(-1,)), "reply_ids holds"),
    "a reply beyond the vocabulary": (Request("bad", prompt="a", reply_ids=(1 << 30,)), "reply_ids holds"),
}


@pytest.mark.parametrize(("request_", "words"), BAD.values(), ids=BAD.keys())
def test_what_no_model_can_read_is_refused_at_once(engine: Engine, request_: Request, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        engine.submit(request_)
    assert ids_of(engine.stream(ask("fine", "bad", max_tokens=2)))


def test_an_id_beyond_the_vocabulary_is_found_at_admission_where_the_models_were_not_loaded_yet() -> None:
    target = tiny_model()
    engine = Engine(EngineConfig("tiny", Path(), context=256), lambda config, _: assemble_loaded(config, target))
    box, good = Outbox(), Outbox()
    engine.submit(Request("bad", prompt_ids=(1, 2, 999_999)), box)
    engine.submit(ask("fine", "good", max_tokens=2), good)
    engine.start()
    assert "999999" in ended(box)[-1].message
    assert ended(good)[-1].reason is not FinishReason.ERROR
    engine.close()


def test_an_id_is_refused_while_a_request_has_it_and_free_when_that_has_ended(engine: Engine) -> None:
    alone = ids_of(engine.stream(ask("first", "alone", max_tokens=100, drafter="ngram")))
    stream = engine.stream(ask("first", "twice", max_tokens=100, drafter="ngram"))
    events = [next(stream)]
    with pytest.raises(EngineError, match="'twice' has not ended yet"):
        engine.submit(ask("second", "twice"))
    with pytest.raises(EngineError, match="'twice' has not ended yet"):
        list(engine.stream(ask("second", "twice")))
    events += stream
    assert ids_of(events) == alone
    assert sum(isinstance(event, Finished) for event in events) == 1
    assert ids_of(engine.stream(ask("third", "twice", max_tokens=2)))


def test_an_id_may_be_used_again_once_it_is_cancelled(engine: Engine) -> None:
    boxes = [Outbox() for _ in range(6)]
    for box in boxes:
        engine.submit(ask("again", "again", max_tokens=200), box)
        engine.cancel("again")
    last = list(engine.stream(ask("again", "again", max_tokens=2)))
    assert len(ids_of(last)) == 2
    for box in boxes:
        assert ended(box)[-1].reason is FinishReason.CANCELLED
        assert box.get(0) is None


def test_a_token_that_the_vocabulary_has_and_the_model_lacks_is_refused() -> None:
    target = tiny_model()
    words = target.tokenizer.backend_tokenizer
    words.add_special_tokens([f"<|{number}|>" for number in range(target.vocab_size - words.get_vocab_size())])
    words.add_special_tokens(["<|extra|>"])
    sentence = r"holds the token '<\|extra\|>' \(260\), and the model has 260 tokens"
    with tiny_engine(target) as engine:
        assert re.search(sentence, list(engine.stream(Request("bad", prompt="a <|extra|> b")))[-1].message)
        with pytest.raises(EngineError, match=sentence):
            engine.prompt_ids(Request("bad", prompt="a <|extra|> b"))
        assert ids_of(engine.stream(ask("fine", max_tokens=2)))
