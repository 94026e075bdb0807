"""Training text: given prompts, what the target is asked while it writes, and the tokens that a draft can draft."""

from pathlib import Path

import pytest
import torch

from specchat.engine import EngineError, Message, Request
from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.sequence.prompt import encode
from specchat.engine.tools.distill import DistillOptions, training
from specchat.engine.tools.distill.text import (
    Conversation,
    Corpus,
    Rollout,
    Script,
    read_turns,
    scripts_of,
)
from tests.engine.tiny import EOS, tiny_model


def test_turns_of_a_line_are_put_together_as_the_template_does(tmp_path: Path) -> None:
    """Only \\n ends a line, not other separators within a text."""
    tokenizer, first = tiny_model().tokenizer, "one\u2028and\x85one"
    file = tmp_path / "asked.jsonl"
    file.write_bytes(f'\ufeff{{"turns": ["{first}", "two"]}}\r\n\r\n{{"turns": ["three"]}}\r\n'.encode())
    both, single = scripts_of(read_turns(file), tokenizer, "tiny", 60)
    messages = (Message("user", first), Message("assistant", "yes"), Message("user", "two"))
    reply = tokenizer.encode("yes", add_special_tokens=False)
    assert [*both.prompt, *reply, *both.follow_ups[0]] == encode(Request("", messages=messages), tokenizer)
    assert list(single.prompt) == encode(Request("", messages=(Message("user", "three"),)), tokenizer)
    assert single.follow_ups == ()


@pytest.mark.parametrize(
    "line", ["hello", '{"turns": []}', '{"turns": "hello"}', '{"turns": [1]}', "[1]", '{"turn": 1}']
)
def test_a_line_that_is_no_conversation_is_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "asked.jsonl"
    file.write_text('{"turns": ["one"]}\n' + line + "\n")
    with pytest.raises(EngineError, match=r"asked\.jsonl, line 2: write an object such as"):
        read_turns(file)


def backend(slots: int, context: int, *taps: int) -> TransformersBackend:
    return TransformersBackend(tiny_model().model, slots=slots, context=context, overhang=0, taps=taps)


def written(
    target: TransformersBackend, ends: frozenset[int], scripts: list[Script], most: int, *settings: object
) -> list[Conversation]:
    rollout = Rollout(target, ends, scripts, torch.float32, 3, *settings)
    talks: list[Conversation] = []
    while len(talks) < most:
        talks += rollout.step()
    return talks


def given_of(talk: Conversation) -> list[int]:
    """The tokens that the target did not write."""
    return talk.tokens[~talk.sampled].tolist()


def test_every_prompt_is_answered_once_before_any_is_again() -> None:
    prompts = [(5, 6, number) for number in range(20, 27)]
    talks = written(backend(1, 8, 0, 1), frozenset(), [Script(prompt) for prompt in prompts], 2 * len(prompts))
    answered = [tuple(talk.tokens[:3].tolist()) for talk in talks]
    for passed in (answered[:7], answered[7:]):
        assert sorted(passed) == prompts


def test_the_turns_of_a_script_are_asked_one_after_the_other() -> None:
    target = backend(2, 40, 0, 1)
    ends = frozenset(range(0, target.vocabulary, 2))  # every other token ends a turn
    for talk in written(target, ends, [Script((5, 7, 9), ((11, 13), (15, 17)))], 6):
        given = given_of(talk)
        assert given == [5, 7, 9, 11, 13, 15, 17][: len(given)]
        if len(talk.tokens) < target.context:
            assert len(given) == 7
            assert int(talk.tokens[-1]) in ends, "the end of a reply is among what is learnt"


@torch.inference_mode()
def test_states_and_totals_are_those_of_one_pass() -> None:
    whole = backend(2, 24, 1, 2)
    for talk in written(backend(2, 24, 1, 2), frozenset({3, 4}), [Script((5, 7, 9), ((11, 13),))], 3):
        logits, read = whole.forward_with_states(talk.tokens[None].long(), [0], [0])
        judged = talk.sampled[1:]  # of the last token, after which nothing is drawn, there need be none
        torch.testing.assert_close(talk.features[:-1], read[0, :-1], rtol=1e-4, atol=1e-4)
        totals = logits[0].logsumexp(-1)[:-1]
        torch.testing.assert_close(talk.log_total[:-1][judged], totals[judged], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("tokens", "before", "chosen"),
    [
        ([9] * 5 + [7] * 4 + [5] * 3 + [3] * 2, None, [5, 7, 9, EOS]),  # what ends a reply, however rare it is
        ([9] * 5 + [7] * 3 + [5] * 1 + [40], [20, 30, 40, 50, 60], [7, 9, 40, EOS]),  # yields to what is more frequent
    ],
)
def test_the_most_frequent_tokens_are_drafted(
    tokens: list[int], before: list[int] | None, chosen: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "LEAST_TOKENS", 1)
    monkeypatch.setattr(training, "VOCABULARY", (100, 4))
    corpus, size = Corpus(tmp_path), len(tokens)
    corpus.add([Conversation(torch.tensor(tokens).int(), torch.ones(size) > 0, torch.zeros(size, 1), torch.ones(size))])
    known = None if before is None else torch.tensor(before)
    options = DistillOptions(Path(), "tiny", Path())
    assert training.draft_vocabulary(options, tiny_model(), corpus, known)[1].tolist() == chosen
