"""Which cells a plan has, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from specchat.engine.errors import EngineError
from specchat.engine.events import Ready
from specchat.engine.request import parse_gamma
from specchat.engine.tools.bench import BenchOptions
from specchat.engine.tools.bench.plan import NONE, Plan, Variant

READY = Ready("t", "d", ("model", "ngram", "none"), "cpu", "CPU", "float32", 512, 4, 1, 1, 0.0)


def test_without_names_every_drafter_is_measured_and_none_comes_first() -> None:
    assert Plan(gammas=(2, None)).variants([], READY) == [
        NONE,
        Variant("model", 2),
        Variant("model", None),
        Variant("ngram", 2),
        Variant("ngram", None),
    ]


def test_the_set_up_of_a_chat_is_measured_unless_told_otherwise() -> None:
    options = BenchOptions(Path(), "bench")
    assert options.plan().variants(options.drafters, READY) == [NONE, Variant("model", None)]


def test_none_and_gamma_0_are_the_baseline_which_is_there_once() -> None:
    assert Plan(gammas=(0, 4, 4)).variants(["none", "ngram", "ngram"], READY) == [NONE, Variant("ngram", 4)]
    assert Plan(gammas=(0,)).variants(["ngram"], READY) == [NONE]


def test_gamma_is_a_number_or_auto() -> None:
    assert (parse_gamma("3"), parse_gamma("auto")) == (3, None)
    assert [Variant("ngram", gamma).gamma_text for gamma in (3, None)] == ["3", "auto"]
    with pytest.raises(EngineError, match="gamma is 'many'"):
        parse_gamma("many")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"gammas": (-1,)}, "gamma is -1"),
        ({"gammas": (17,)}, "gamma is 17"),
        ({"batches": (1, 0)}, "batch is 0"),
        ({"passes": 0}, "passes is 0"),
        ({"max_tokens": 1}, "max-tokens is 1"),
        ({"temperatures": (-0.5,)}, r"temperature is -0\.5"),
        ({"temperatures": (float("nan"),)}, "temperature is nan"),
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        Plan(**values)  # type: ignore[arg-type]


def test_a_drafter_that_is_not_there_is_refused() -> None:
    with pytest.raises(EngineError, match="'magic' is not there: choose from model, ngram, none"):
        Plan().variants(["magic"], READY)
