"""A local lane next to an attached server: when it is asked, what its figures are, and how it fails."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specchat.app.chat.archive import NoArchive
from specchat.app.chat.reply import Reply
from specchat.app.settings.settings import Settings
from specchat.app.side_by_side.duet import Duet, SideOptions, attached_duet
from specchat.app.sources.attached import AttachedEngine
from specchat.app.ui.widgets.side_summary import server_texts
from specchat.engine import Died, Finished, FinishReason, Ready
from tests.app.server.served import Served
from tests.app.sources.servers import recorded as shapes
from tests.app.sources.servers.recorded import BREAK, CHAT, Recorded
from tests.waiting import PATIENCE_S, until


@pytest.fixture
def duet_of(model: Path) -> Iterator[Callable[..., Duet]]:
    """Makes duets of that model and a server."""
    made: list[Duet] = []

    def make(url: str, key: str | None = None, max_tokens: int = 12, **shared: object) -> Duet:
        settings = Settings(target=str(model), dtype="float32", max_tokens=max_tokens, **shared)  # type: ignore[arg-type]
        duet = attached_duet(settings, SideOptions("ngram:gamma=3"), AttachedEngine(url, key))
        made.append(duet)
        duet.connect(NoArchive())
        return duet

    yield make
    for duet in made:
        duet.end()


def wait(duet: Duet, reached: Callable[[], bool]) -> None:
    """Drain as the screen does until something is reached."""

    def drained() -> bool:
        for record in duet.drain():
            assert not isinstance(record, Died), record
            if isinstance(record, Ready):
                duet.ready()
        return reached()

    until(drained)


def ask(duet: Duet, prompt: str = "the quick brown fox") -> tuple[Reply, Reply]:
    """Both replies to a prompt, once they have ended."""
    duet.send(prompt)
    turns = len(duet.conversations[1].prompts)
    wait(duet, lambda: duet.done and len(duet.conversations[1].prompts) >= max(turns, 1))
    left, right = duet.lanes[0].reply, duet.lanes[1].reply
    assert left is not None
    assert right is not None
    return left, right


@pytest.mark.slow
def test_our_server_agrees(duet_of: Callable[..., Duet], model: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    options = ("--target", model, "--dtype", "float32", "--slots", 1)
    with Served(*options, home=tmp_path_factory.mktemp("home"), key="secret") as server:
        duet = duet_of(server.url, server.key)
        left, right = ask(duet)
        assert duet.labels == ("ngram γ ≤ 3", "specchat serve")
        assert left.text == right.text
        assert right.reason is FinishReason.LENGTH
        assert right.model == model.name
        assert duet.lanes[1].tally.seconds > 0
        assert (duet.same_target, duet.comparable, duet.comparison.predicted) == (False, False, None)
        assert server_texts((left, right), greedy=True, same_prompt=True)[1] is True
        duet.regenerate()
        wait(duet, lambda: duet.done and duet.lanes[1].reply is not right)
        assert len(duet.runs) == 2

        server.process.kill()
        server.process.wait(PATIENCE_S)
        left, right = ask(duet, "and again")
    assert left.reason is FinishReason.LENGTH
    assert right.reason is FinishReason.ERROR
    assert f"{server.url} was lost in mid-reply" in right.message


def test_what_llama_cpp_tells_comes_as_it_comes(duet_of: Callable[..., Duet]) -> None:
    with Recorded(shapes.LLAMA_CPP, {CHAT: shapes.LLAMA_CPP_STREAM}) as server:
        duet = duet_of(server.url)
        left, right = ask(duet)
        assert duet.labels[1] == "llama.cpp"
        assert duet.targets[1] == "m"
        assert [(len(r.drafted), r.accepted) for r in right.rounds][:2] == [(0, 0), (4, 2)]
        assert duet.lanes[1].tally.metrics.tested == right.metrics.tested > 0
        assert duet.lanes[1].tally.metrics.alpha is duet.comparison.predicted is None
        sentence, same = server_texts((left, right), greedy=True, same_prompt=True)
        assert sentence == "they part at character 1; texts compared: a server gives no token ids"
        assert same is None
        (body,) = [body for path, body in server.asked if path == CHAT]
        assert body["max_tokens"] == 12


def test_a_server_that_dies_in_mid_reply_fails_in_its_lane(duet_of: Callable[..., Duet]) -> None:
    with Recorded(shapes.LLAMA_CPP, {CHAT: (*shapes.LLAMA_CPP_STREAM[:4], BREAK)}) as server:
        left, right = ask(duet_of(server.url))
    assert (left.reason, len(left.emitted)) == (FinishReason.LENGTH, 12)
    assert (right.reason, right.text) == (FinishReason.ERROR, "1. Gra")
    assert "ask again" in right.message
    assert server_texts((left, right), greedy=True, same_prompt=True) == ("not compared: a reply is not complete", None)


def test_texts_are_compared_where_they_can_be() -> None:
    one, other = Reply(), Reply()
    for reply, text in ((one, "a river"), (other, "a rivet")):
        reply.add(Finished("r", FinishReason.EOS, text, "", 0.0))
    assert server_texts((one, one), greedy=True, same_prompt=True) == (
        "✓ identical, character for character (7); texts compared: a server gives no token ids",
        True,
    )
    assert server_texts((one, other), greedy=True, same_prompt=True)[0].startswith("they part at character 7")
    assert "sampled" in server_texts((one, one), greedy=False, same_prompt=True)[0]
    assert "an earlier text differs" in server_texts((one, one), greedy=True, same_prompt=False)[0]
    assert "not complete" in server_texts((one, None), greedy=True, same_prompt=True)[0]
