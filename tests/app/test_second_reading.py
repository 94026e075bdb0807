"""A reply of the chat read again by two drafters: the classes of its tokens, and when it cannot be read."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from specchat.app.chat.archive import NoArchive
from specchat.app.chat.reply import Reply
from specchat.app.chat.request_manager import RequestManager, Session
from specchat.app.chat.second_reading import AlignedReply, Had, SecondReading, said_texts
from specchat.app.errors import UsageError
from specchat.app.settings.settings import Settings
from specchat.app.sources.source import Stepper
from specchat.engine import Engine, EngineConfig, TraceWriter
from specchat.engine.tools.evaluate import EvaluateOptions, evaluate
from tests.app.test_examination import answered

pytestmark = pytest.mark.slow

PROMPT = "Name three rivers and say where each of them is. Then write the same list again."
DRAFTERS = "combined", "suffix"


class Chat:
    """A chat with the default model, and one reply."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self.stepper = Stepper(Engine(EngineConfig(str(model), model.parent)))
        self.requests = RequestManager()
        settings = Settings(target=str(model), max_tokens=120)
        self.requests.connect(Session(self.stepper, settings), NoArchive())
        assert isinstance(self.stepper.source, Engine)
        self.engine = self.stepper.source
        self.engine.wait_ready(120)
        self.requests.ready()
        self.conversation, self.reply = answered(self.requests, PROMPT)

    def read(self, reply: Reply | None = None) -> SecondReading:
        return SecondReading(self.requests, self.conversation, reply or self.reply)


@pytest.fixture(scope="module")
def chat(default_model: Path) -> Iterator[Chat]:
    made = Chat(default_model)
    yield made
    made.requests.close()


def test_the_classes_are_those_of_evaluate(chat: Chat, tmp_path: Path) -> None:
    aligned = AlignedReply(said_texts(chat.reply), chat.read().begin(DRAFTERS).result(120))
    assert "".join(aligned.texts) == chat.reply.text
    trace = tmp_path / "reply.jsonl"
    writer = TraceWriter(trace)
    messages = chat.conversation.messages(chat.conversation.prompts[0])
    writer.write(Settings(target=str(chat.model)).request(chat.reply.request_id, messages))
    for record in chat.reply.rounds:
        writer.write(record)
    writer.close()
    options = EvaluateOptions(models=chat.model.parent, target=str(chat.model), files=(trace,), drafters=DRAFTERS)
    found = json.loads(evaluate(options, lambda _line: None).json())
    only = {pair["has"]["drafter"]: pair["places"][0] for pair in found["only_one"]}
    shown = [[at for at, each in enumerate(aligned.had) if each is had] for had in (Had.ONLY_A, Had.ONLY_B)]
    assert shown == [only["combined"], only["suffix"]]
    assert any(shown)
    for figures, counted in zip(aligned.alignment.figures, found["figures"], strict=True):
        assert (figures.drafter, figures.tau, figures.alpha) == (counted["drafter"], counted["tau"], counted["alpha"])


def test_a_reply_is_not_drafted_from_itself(chat: Chat) -> None:
    """Nor from another reply to the same prompt, which may have the same words."""
    before = chat.read().begin(DRAFTERS).result(120)
    others = chat.engine.other_chats
    others.update({number: others.encode(PROMPT, chat.reply.text) for number in (7, 8)})
    try:
        assert chat.read().begin(DRAFTERS).result(120).figures[0].tau > before.figures[0].tau
        chat.reply.row, again = 7, Reply("again")
        again.row = 8
        again.fail("it was stopped")
        chat.conversation.prompts[0].attach(again, chosen=False)
        after = chat.read().begin(DRAFTERS).result(120)
    finally:
        chat.reply.row = None
        chat.conversation.prompts[0].children[1:] = []
        others.update({}, others.keys)
    assert [each.tau for each in after.figures] == [each.tau for each in before.figures]


def test_what_cannot_be_read_is_said(chat: Chat) -> None:
    running = Reply("running")
    chat.conversation.prompts[0].attach(running, chosen=False)
    with pytest.raises(UsageError, match="still being written"):
        chat.read(running)
    running.fail("it failed")
    with pytest.raises(UsageError, match="tokens of this reply are not known"):
        chat.read(running)
    chat.reply.model, model = "another", chat.reply.model
    with pytest.raises(UsageError, match="this reply came from another: load that"):
        chat.read()
    chat.reply.model = model
