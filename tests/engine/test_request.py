"""Requests: refused values and their error messages."""

from math import inf, nan
from typing import Any

import pytest

from specchat.engine import EngineError, Message, Request, Sampling, from_json, to_json

HELLO = (Message("user", "Hello"),)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-0.1, inf, nan]), ("top_k", [-1]), ("top_p", [0.0, -0.5, 1.01, nan]),
        ("min_p", [-0.1, 1.0, nan]), ("repetition_penalty", [0.0, -1.0, inf, nan]),
        ("presence_penalty", [-2.1, 2.1, nan]), ("frequency_penalty", [-2.1, 2.1, nan]),
        ("lenience", [0.0, -0.5, 1.01, nan]),
    ],
)  # fmt: skip
def test_sampling_out_of_range_is_refused_by_name(name: str, values: list[float]) -> None:
    for value in values:
        with pytest.raises(EngineError, match=f"^{name.replace('_', '-')} is {value:g}: it must be"):
            Sampling(**{name: value})  # type: ignore[arg-type]


def test_sampling_at_its_limits_is_accepted() -> None:
    assert Sampling(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0).greedy
    assert Sampling(temperature=2.0, top_k=1).greedy
    assert not Sampling(temperature=100.0, top_k=1 << 40, top_p=1e-9, min_p=0.999, seed=-1).greedy


@pytest.mark.parametrize(
    ("bias", "sentence"),
    [
        (((-1, 0.5),), "logit-bias names token -1: token ids start at 0"),
        (((5, nan),), "logit-bias of token 5 is nan: it must be from -100 to 100"),
        (((5, 101.0),), "logit-bias of token 5 is 101: it must be from -100 to 100"),
        (((5, 1.0), (6, 1.0), (5, 2.0)), "logit-bias names token 5 more than once: give each token one bias"),
    ],
)
def test_a_bias_out_of_range_is_refused(bias: tuple[tuple[int, float], ...], sentence: str) -> None:
    with pytest.raises(EngineError) as error:
        Sampling(logit_bias=bias)
    assert str(error.value) == sentence


def test_a_request_with_every_setting_comes_back_from_a_trace() -> None:
    sampling = Sampling(0.7, 40, 0.9, 0.05, 7, 1.1, 0.5, ((5, -100.0), (7, 2.5)), 0.5, -0.5)
    request = Request("r", HELLO, sampling=sampling)
    read = from_json(to_json(request))
    assert read == request
    assert hash(read) == hash(request)
    for damaged in ("[[5, -100.0, 1], [7, 2.5]]", "[[5]]", '[["5", 1.0]]', "[5, 1.0]", "[[5, 1000.0]]", "null"):
        line = to_json(request).replace("[[5, -100.0], [7, 2.5]]", damaged)
        assert line != to_json(request)
        with pytest.raises(ValueError, match="not a record"):
            from_json(line)


@pytest.mark.parametrize(
    "values", [{"gamma": -1}, {"gamma": 17}, {"max_tokens": 0}, {"max_tokens": -5}, {"detail": -1}]
)
def test_limits_out_of_range_are_refused_by_name(values: dict[str, int]) -> None:
    (name, value), *_ = values.items()
    with pytest.raises(EngineError, match=f"^{name.replace('_', '-')} is {value}: it must be"):
        Request("r", HELLO, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "kinds",
    [
        {}, {"messages": HELLO, "prompt": "x"}, {"messages": HELLO, "prompt_ids": (1,)},
        {"prompt": "", "prompt_ids": (1,)}, {"messages": HELLO, "prompt": "x", "prompt_ids": (1,)},
    ],
)  # fmt: skip
def test_a_request_has_exactly_one_kind_of_prompt(kinds: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="only one of them"):
        Request("r", **kinds)


def test_an_empty_stop_string_and_an_unknown_role_are_refused() -> None:
    with pytest.raises(EngineError, match="stop string is empty"):
        Request("r", HELLO, stop=("\n", ""))
    with pytest.raises(EngineError, match="role 'robot' is not known: choose one of system, user, assistant"):
        Message("robot", "beep")
