"""`specchat compare` on a model of random weights: its tables, its JSON, its failures, and how setups are written."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specchat.engine import Event, Round
from specchat.engine.tools import compare as runner
from tests.app.cli.commands.command import Done, command
from tests.app.sources.servers import recorded as shapes
from tests.app.sources.servers.recorded import CHAT, Recorded

PROMPT = "abc abc abc abc"


@pytest.fixture
def compare(model: Path) -> Callable[..., Done]:
    def run(*arguments: object, dtype: str = "float32") -> Done:
        return command("compare", *arguments, "--target", model, "--dtype", dtype, "--max-tokens", "24")

    return run


def test_a_table_for_people(compare: Callable[..., Done]) -> None:
    done = compare(PROMPT, "--repeat", "2", "--right", "ngram:gamma=3")
    assert done.code == 0
    assert done.err == ""
    assert "both texts are identical, token for token (2 of 2 runs)" in done.out
    assert "no dra" in done.out
    assert "ngram γ ≤ 3" in done.out
    for words in ("Theorem 3.8", "Theorem 3.11", "A lane's clock runs while the lane works"):
        assert words in done.out


def test_watch_shows_the_spread_until_stopped(compare: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    run, runs = runner.run_lanes, list[Any]()

    def three(*given: Any) -> list[list[Event]]:
        runs.append(given)
        if len(runs) > 1 + 3:  # the first warms up
            raise KeyboardInterrupt
        return run(*given)

    monkeypatch.setattr(runner, "run_lanes", three)
    done = compare(PROMPT, "--watch", "--right", "ngram:gamma=3")
    assert done.code == 0
    hint, *lines = done.err.splitlines()
    assert "ctrl+c" in hint
    assert [line.split(":")[0] for line in lines] == ["run 1", "run 2", "run 3"]
    assert "..." in lines[-1]
    assert "identical, token for token (3 of 3 runs)" in done.out


def test_json_has_every_figure(compare: Callable[..., Done]) -> None:
    found = json.loads(compare(PROMPT, "--repeat", "3", "--right", "ngram:gamma=4", "--json").out)
    (row,) = found["rows"]
    assert (row["trials"], row["identical"], row["order"]) == (3, 3, "interleaved")
    assert row["left"]["passes"] == 3 * 24
    assert row["right"]["passes"] + row["right"]["passes_saved"] == 3 * 24
    assert row["measured"]["least"] <= row["measured"]["median"] <= row["measured"]["most"]
    assert row["predicted"] is not None
    assert row["right"]["work"]["median"] >= 1
    assert found["exact"] is None


def test_a_file_of_prompts_in_both_orders(compare: Callable[..., Done], tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one one one\n\ntwo two two\n", encoding="utf-8-sig")
    found = json.loads(compare("--file", file, "--order", "both", "--repeat", "1", "--json").out)
    assert [(row["prompt"], row["order"]) for row in found["rows"]] == [
        (prompt, order) for prompt in ("one one one", "two two two") for order in ("interleaved", "sequential")
    ]
    assert [row["order"] for row in found["overall"]] == ["interleaved", "sequential"]
    assert found["orders_differ"] >= 0


def test_a_difference_is_located_with_its_gap(compare: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    run_lanes = runner.run_lanes

    def tampered(*given: object) -> object:
        left, right = run_lanes(*given)  # type: ignore[arg-type]
        at = next(i for i, e in enumerate(right) if isinstance(e, Round) and e.number == 3)
        right[at] = replace(right[at], last=0)  # type: ignore[type-var]
        return left, right

    monkeypatch.setattr(runner, "run_lanes", tampered)
    (row,) = json.loads(compare(PROMPT, "--right", "none", "--repeat", "1", "--json").out)["rows"]
    assert row["identical"] == 0
    assert row["difference"] == 3
    assert row["top2_gap"] > 0


def test_a_server_is_a_lane_timed_by_its_own_stream(compare: Callable[..., Done]) -> None:
    with Recorded(shapes.VLLM, {CHAT: shapes.vllm_stream(shapes.VLLM_METRICS)}) as server:
        attach = ("--attach", server.url, "--repeat", "1")
        done = compare(PROMPT, "--left", "none", *attach)
        assert (done.code, done.err) == (0, "")
        (row,) = json.loads(compare(PROMPT, *attach, "--json").out)["rows"]
        bodies = [body for path, body in server.asked if path == CHAT]
        assert [body["max_tokens"] for body in bodies] == [8, 24, 8, 24]
        for given in ("--right", "--order"):
            assert f"{given} contradicts --attach" in compare(PROMPT, *attach, given, "none").sentence
    assert f"The right lane is the server at {server.url}, timed by its own stream" in done.out
    assert "The lanes have different targets: their texts are not compared." in done.out
    lane = row["right"]
    assert (lane["set_up"], lane["tested"], lane["accepted"], lane["passes"]) == ("vLLM", 6, 4, 4)
    assert lane["tokens"]["median"] == 7
    assert lane["alpha"] is lane["work"] is row["predicted"] is None
    assert row["left"]["set_up"] != "no drafts"
    assert "cannot be reached" in compare(PROMPT, "--attach", server.url).sentence
