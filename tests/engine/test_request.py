"""Requests: what is refused, and the sentence that says so."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from engine import EngineError, Message, Request, Sampling

HELLO = (Message("user", "Hello"),)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-0.1, inf, nan]),
        ("top_k", [-1]),
        ("top_p", [0.0, -0.5, 1.01, nan]),
        ("min_p", [-0.1, 1.0, nan]),
    ],
)
def test_sampling_out_of_range_is_refused_by_name(name: str, values: list[float]) -> None:
    for value in values:
        with pytest.raises(EngineError, match=f"^{name.replace('_', '-')} is {value:g}: it must be"):
            Sampling(**{name: value})  # type: ignore[arg-type]


def test_sampling_at_its_limits_is_accepted() -> None:
    assert Sampling(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0).greedy
    assert not Sampling(temperature=100.0, top_k=1 << 40, top_p=1e-9, min_p=0.999, seed=-1).greedy


def test_the_most_likely_token_alone_is_greedy_at_any_temperature() -> None:
    assert Sampling(temperature=2.0, top_k=1).greedy


@pytest.mark.parametrize("values", [{"gamma": -1}, {"max_tokens": 0}, {"max_tokens": -5}, {"detail": -1}])
def test_limits_out_of_range_are_refused_by_name(values: dict[str, int]) -> None:
    (name, value), *_ = values.items()
    with pytest.raises(EngineError, match=f"^{name.replace('_', '-')} is {value}: it must be"):
        Request("r", HELLO, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "kinds",
    [
        {},
        {"messages": HELLO, "prompt": "x"},
        {"messages": HELLO, "prompt_ids": (1,)},
        {"prompt": "", "prompt_ids": (1,)},
        {"messages": HELLO, "prompt": "x", "prompt_ids": (1,)},
    ],
)
def test_a_request_has_exactly_one_kind_of_prompt(kinds: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="only one of them"):
        Request("r", **kinds)


@pytest.mark.parametrize("kinds", [{"messages": HELLO}, {"prompt": ""}, {"prompt_ids": (0,)}])
def test_each_kind_of_prompt_will_do(kinds: dict[str, Any]) -> None:
    assert Request("r", **kinds).gamma == 4


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(EngineError, match="stop string is empty"):
        Request("r", HELLO, stop=("\n", ""))


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(EngineError, match="role 'robot' is not known: choose one of system, user, assistant"):
        Message("robot", "beep")
