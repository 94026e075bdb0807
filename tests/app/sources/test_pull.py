"""A download that is paused and resumed, from a small hub on this machine."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specchat.app.sources.pull import Pull, PullState
from specchat.engine import models_folder
from specchat.engine.models import ModelStore
from tests.hub import Hub, serving
from tests.waiting import until

NAME = "someone/tiny"
WEIGHTS = "model.safetensors"
CHUNK = 10 * 1024 * 1024
"""What the hub's library writes at once; half of the weights is more."""


@pytest.fixture
def hub(tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub(someone__tiny=tiny_model(hidden_size=512, intermediate_size=2048))) as served:
        served.whole.clear()
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        yield served


def test_a_download_is_paused_and_goes_on_where_it_stopped(hub: Hub) -> None:
    store = ModelStore(models_folder())
    work = store.folder / ".unfinished"
    pull = Pull(NAME)
    pull.start()
    until(lambda: hub.half_sent.is_set() and arrived(work) >= CHUNK, lambda: (pull.state, pull.text))
    assert pull.running
    pull.pause()
    assert pull.state is PullState.PAUSED
    hub.whole.set()
    assert store.find("someone--tiny") is None
    pull.start()
    until(lambda: not pull.running, lambda: (pull.state, pull.text))
    assert pull.state is PullState.DONE, pull.text
    folder = store.find("someone--tiny")
    assert folder is not None
    assert (folder / WEIGHTS).read_bytes() == (hub.repositories[NAME] / WEIGHTS).read_bytes()
    ranges = [asked for name, asked in hub.asked if name == WEIGHTS]
    assert ranges[0] == ""
    assert int(ranges[-1].removeprefix("bytes=").partition("-")[0]) >= CHUNK


def arrived(work: Path) -> int:
    return max((file.stat().st_size for file in work.rglob(f".partial/{WEIGHTS}")), default=0)


@pytest.mark.usefixtures("hub")
def test_a_download_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    pull = Pull(NAME)
    pull.start()
    until(lambda: not pull.running, lambda: (pull.state, pull.text))
    assert pull.state is PullState.FAILED
    assert "the hub cannot be reached" in pull.text
