"""Commands on a T5 of random weights: `ask` and `bench` work; commands that need a decoder-only model refuse it."""

import json
from pathlib import Path

import pytest
import torch

from tests.app.cli.commands.command import command
from tests.engine.tiny_t5 import tiny_t5_network, tiny_t5_tokenizer, write_tiny_t5

SOURCE = "translate English to German: the house is wonderful."


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_t5(tmp_path_factory.mktemp("models") / "t5", n_positions=2048)


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_t5(tmp_path_factory.mktemp("models") / "draft", noise=0.1, n_positions=2048)


def test_ask_gives_the_text_to_the_encoder_as_it_is(t5: Path, draft: Path) -> None:
    source = torch.tensor([tiny_t5_tokenizer().encode(SOURCE)])
    expected = tiny_t5_network().generate(source, max_new_tokens=20, do_sample=False)[0, 1:].tolist()
    options = ("--target", t5, "--draft", draft, "--dtype", "float32", "--gamma", 4, "--max-tokens", 20)
    values = json.loads(command("ask", SOURCE, "--json", *options).out)
    assert values["token_ids"] == expected
    assert (values["drafter"], values["prompt_tokens"]) == ("model", source.numel())
    assert values["accepted"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("ask", SOURCE, "--system", "be brief"),
            "t5 reads one text and nothing before it: leave --system, --chat and",
        ),
        (("ask", SOURCE, "--beams", 2), "beams are searched with a model that continues text, and t5 is an"),
        (("bench", "--peer", "transformers"), "--peer compares programs that run a model that continues text, and t5"),
        (("evaluate", __file__), "specchat evaluate reads texts with a model that continues text, and t5 is an"),
        (("verify", "--limit", 1), "specchat verify checks a model that continues text, and t5 is an encoder-decoder"),
        (("distill", "--minutes", 1), "the kind eagle is trained for a model that continues text, and t5 is an"),
        (("compare", "hello"), "t5 reads one text and holds no conversation: give it a prompt, as specchat ask"),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, tuple) else "",
)
def test_another_target_is_asked_for(arguments: tuple[object, ...], sentence: str, t5: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out") if arguments[0] == "distill" else ()
    done = command(*arguments, *out, "--target", t5)
    assert done.code == 2
    assert sentence in done.err.splitlines()[-1]
