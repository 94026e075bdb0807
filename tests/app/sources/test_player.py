"""A trace is played at its own speed by the clock it is given, and held by a stepper, which loses no round."""

import pytest

from specchat.app.sources.player import Player
from specchat.app.sources.source import Stepper
from specchat.engine import EngineError, Message, Record, Request, Round
from tests.app.recorded import Clock, trace


@pytest.fixture
def clock() -> Clock:
    return Clock()


def drained(player: Player, clock: Clock, seconds: float) -> list[Record]:
    clock.now += seconds
    return player.drain()


def test_gives_every_record_once_and_in_order(clock: Clock) -> None:
    player = Player(trace(), clock=clock)
    player.start()
    given: list[Record] = []
    while not player.ended:
        given += drained(player, clock, 0.5)
    assert given == trace()
    assert drained(player, clock, 100) == []
    with pytest.raises(EngineError, match="replay"):
        player.submit(Request("a", (Message("user", "?"),)))


def test_pauses_changes_speed_and_begins_again(clock: Clock) -> None:
    player = Player(trace(), clock=clock)
    player.start()
    drained(player, clock, 2)
    player.pause()
    assert drained(player, clock, 100) == []
    assert player.position == 2
    player.resume()
    player.faster()
    drained(player, clock, 1)
    assert player.position == 4
    player.faster(-1)
    drained(player, clock, 1)
    assert player.position == 5
    player.restart()
    assert player.drain()[0] == trace()[0]


def test_going_to_a_rejection_that_is_overdue_gives_no_record_twice(clock: Clock) -> None:
    player = Player(trace("tour"), clock=clock)
    player.start()
    given = drained(player, clock, 0.1)
    clock.now += player.duration  # no record was requested during this time
    player.pause()
    assert player.to_rejection()
    given += player.drain()
    assert given == trace("tour")[: len(given)]
    assert isinstance(given[-1], Round)
    assert given[-1].accepted < given[-1].tested


def stepper_of(name: str) -> tuple[Stepper, Player, Clock]:
    """A stepper of a trace, which is paused."""
    clock = Clock()
    player = Player(trace(name), name, clock)
    stepper = Stepper(player)
    stepper.start()
    stepper.pause()
    return stepper, player, clock


@pytest.mark.parametrize("name", ["detail", "lanes"])
def test_stepping_through_everything_gives_every_record_once_and_in_order(name: str) -> None:
    stepper, _player, _clock = stepper_of(name)
    given: list[Record] = []
    for _ in range(2000):
        given += stepper.drain()
        stepper.step()
    assert given == trace(name)
