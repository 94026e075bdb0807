"""A source that is held gives its rounds one at a time, each in parts, and loses none of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specchat.app.sources.player import Player
from specchat.app.sources.stepper import Part, Stepper
from specchat.engine import Admitted, Finished, Record, Round
from tests.app.recorded import Clock, trace


def stepper_of(name: str) -> tuple[Stepper, Player, Clock]:
    clock = Clock()
    player = Player(trace(name), name, clock)
    stepper = Stepper(player)
    stepper.start()
    return stepper, player, clock


@pytest.mark.parametrize("name", ["chat", "detail", "lanes"])
def test_stepping_through_everything_gives_every_record_once_and_in_order(name: str) -> None:
    stepper, _player, _clock = stepper_of(name)
    stepper.pause()
    given: list[Record] = []
    for _ in range(2000):
        given += stepper.drain()
        stepper.step()
    assert given == trace(name)


def test_parts_come_one_after_the_other() -> None:
    stepper, _player, _clock = stepper_of("detail")
    stepper.pause()
    stepper.step()
    first = stepper.drain()
    assert any(isinstance(record, Admitted) for record in first)
    assert not any(isinstance(record, Round) for record in first)
    ((record, part),) = stepper.shown
    assert (record.number, part) == (0, Part.DRAFTED)
    stepper.step()
    assert stepper.drain() == []
    assert stepper.shown == [(record, Part.JUDGED)]
    stepper.step()
    assert stepper.drain() == [record]
    assert stepper.shown == []


@pytest.mark.parametrize("end", [Stepper.resume, Stepper.close])
def test_held_records_are_released_at_the_end_of_the_pause(end: Callable[[Stepper], None]) -> None:
    stepper, _player, clock = stepper_of("detail")
    stepper.pause()
    stepper.step()
    given = stepper.drain()
    ((record, _part),) = stepper.shown
    end(stepper)
    clock.now += 100
    given += stepper.drain()
    assert record in given
    assert given == trace("detail")[: len(given)]


def test_all_lanes_of_a_batch_are_shown_together() -> None:
    stepper, _player, _clock = stepper_of("lanes")
    stepper.pause()
    sizes = set()
    for _ in range(60):
        stepper.step()
        stepper.drain()
        sizes.add(len(stepper.shown))
    assert 3 in sizes
    assert sizes <= {0, 1, 2, 3}


def test_jumping_passes_everything_up_to_there() -> None:
    stepper, player, _clock = stepper_of("detail")
    stepper.pause()
    player.seek(player.duration)
    stepper.jump(back=False)
    records = stepper.drain()
    assert records == trace("detail")
    assert isinstance(records[-1], Finished)
    assert player.seek(0.0)
    stepper.jump(back=True)
    player.step()
    assert stepper.paused
    assert [r for r in stepper.drain() if isinstance(r, Round)] == [r for r in records if isinstance(r, Round)][:1]
