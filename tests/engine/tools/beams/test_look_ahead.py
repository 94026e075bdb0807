"""How far drafts of beams look ahead, on machines that are made up."""

from __future__ import annotations

from collections.abc import Callable

from specchat.engine.tools.beams.look_ahead import LookAhead, fit_line
from specchat.engine.tools.beams.node import Node

BEAMS, WIDTH = 4, 8


def run(seconds: Callable[[int], float], accepted: int, useful: int, passes: int = 60) -> list[int]:
    """γ of each pass, where so many steps of a draft go through, and so many tokens of each step are of use."""
    ahead, chosen = LookAhead(WIDTH), []
    for _ in range(passes):
        gamma = ahead.choose()
        levels = [[Node(token, None, 0) for token in range(WIDTH)] for _ in range(gamma)]
        ahead.drafted(levels, 0.0)
        ahead.read(BEAMS + gamma * WIDTH, seconds(BEAMS + gamma * WIDTH))
        for level in levels[: accepted + 1]:
            ahead.went_on(level[:useful])
        ahead.judged(gamma, 1 + min(accepted, gamma))
        chosen.append(gamma)
    return chosen


def test_where_width_costs_little_it_looks_as_far_as_drafts_hold() -> None:
    chosen = run(lambda tokens: 0.01 + 0.0001 * tokens, accepted=3, useful=4)
    assert chosen[0] == 0
    assert set(chosen[20:]) <= {0, 3, 4}
    assert chosen[20:].count(0) <= 1


def test_where_every_token_costs_as_much_it_drafts_nothing_but_to_see() -> None:
    chosen = run(lambda tokens: 0.005 * tokens, accepted=1, useful=3)
    assert sum(chosen[10:]) <= 2
    assert max(chosen[10:]) <= 1


def test_it_drafts_again_when_passes_have_become_flat() -> None:
    passes = iter(range(1000))
    chosen = run(lambda tokens: 0.005 * tokens if next(passes) < 40 else 0.02, accepted=3, useful=4, passes=400)
    assert sum(chosen[-100:]) > 100


def test_drafts_that_never_hold_are_given_up() -> None:
    assert sum(run(lambda tokens: 0.01 + 0.0005 * tokens, accepted=0, useful=0)[10:]) <= 2


def test_a_pass_that_was_held_up_moves_the_line_little() -> None:
    points = [(4 + 8 * (i % 2), 0.01 + 0.001 * (4 + 8 * (i % 2))) for i in range(20)]
    a, b = fit_line([*points, (4, 5.0)])
    assert abs(a - 0.01) < 1e-6
    assert abs(b - 0.001) < 1e-6
    assert fit_line([(4, 0.02)]) == (0.02, 0.0)
