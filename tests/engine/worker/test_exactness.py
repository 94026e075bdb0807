"""The default model on the quantised kernels, bit by bit: a token's logits do not depend on the tokens read with it, on
its place, or on threads; and its greedy tokens not on texts of other chats.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specchat.engine import Engine, EngineConfig, Message, Request, Round
from specchat.engine.backends.packed import PackedBackend
from specchat.engine.decoding.tree import chain, tree_of
from specchat.engine.drafters.suffix import OTHER_CHATS
from specchat.engine.tools.prompts import SETS, load_prompts
from specchat.engine.worker.assembly import assemble
from tests.engine.scored import scored
from tests.engine.tiny import ask, ids_of, run_together, started

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.usefixtures("kernels")]
PROMPTS = [prompt.text for kind in load_prompts(SETS) for prompt in kind.first(4).prompts]
LENGTH = 24


@pytest.fixture(scope="module")
def engine(default_model: Path) -> Iterator[Engine]:
    with started(EngineConfig("smollm2-135m", default_model.parent, context=512, slots=4)) as running:
        yield running


@pytest.fixture(scope="module")
def plain(engine: Engine) -> list[list[int]]:
    """What the target says by itself, one at a time."""
    asked = [ask(text, text, drafter="none", max_tokens=LENGTH) for text in PROMPTS]
    return [ids_of(events) for events in run_together(engine, asked, 1)]


@pytest.mark.parametrize("drafter", ["suffix", "combined"])
def test_greedy_tokens_stay_the_same_with_other_chats(engine: Engine, plain: list[list[int]], drafter: str) -> None:
    """Every reply is in another chat, then every reply with one wrong token in it."""
    prompts = [engine.prompt_ids(Request("p", (Message("user", text),)))[-32:] for text in PROMPTS]
    for wrong, fewest in ((len(plain[0]) + 1, 0.9), (LENGTH // 2, 0.1)):
        texts = {
            number: [*prompt, *(7 if place == wrong else token for place, token in enumerate(reply))]
            for number, (prompt, reply) in enumerate(zip(prompts, plain, strict=True))
        }
        engine.other_chats.update(texts)
        before: Counter[bool] = Counter()
        for number, text in enumerate(PROMPTS):
            events = list(engine.stream(ask(text, drafter=drafter, max_tokens=LENGTH)))
            assert ids_of(events) == plain[number]
            for record in events:
                if isinstance(record, Round) and [each.name for each in record.proposers] == [OTHER_CHATS]:
                    before.update({True: record.accepted, False: record.tested - record.accepted})
        assert before[True] > fewest * before.total() > 0
    engine.other_chats.update({}, engine.other_chats.keys)


def test_logits_have_the_same_bits_wherever_a_token_stands(default_model: Path) -> None:
    """Places: in a chain, alone, as a leaf of a tree, in any slot, next to other rows, with one thread or two."""
    made = assemble(EngineConfig("smollm2-135m", default_model.parent, context=256, slots=4), lambda *_: None)
    target, before = made.target, torch.get_num_threads()
    assert isinstance(target, PackedBackend)
    texts = [made.model.tokenizer.encode(f"Question: {text}")[:40] for text in PROMPTS]
    try:
        for texts_of_four in zip(*[iter(texts)] * 4, strict=True):
            wanted = [one_by_one(target, tokens) for tokens in texts_of_four]
            for count in (1, 2):
                torch.set_num_threads(count)
                shapes = [chain(len(tokens) - 1) for tokens in texts_of_four]
                seen = scored(target, texts_of_four, range(4), [0] * 4, shapes)
                for logits, expected in zip(seen, wanted, strict=True):
                    assert torch.equal(logits.view(torch.int32), expected.view(torch.int32))
                for slot, (tokens, expected) in enumerate(zip(texts_of_four, wanted, strict=True)):
                    tree = tree_of(2)
                    # The text's own tokens along the first branch, other tokens elsewhere.
                    start, line = len(tokens) - 3, tree.first_branch(1)
                    fed = [tokens[start], *[7] * len(tree)]
                    for node, token in zip(line, tokens[start + 1 :], strict=True):
                        fed[node] = token
                    (logits,) = scored(target, [fed], [slot], [start], [tree])
                    judged = logits[[0, *line]]
                    assert torch.equal(judged.view(torch.int32), expected[start:].view(torch.int32))
                    scored(target, [tokens], [slot], [0], [chain(len(tokens) - 1)])
    finally:
        torch.set_num_threads(before)


def one_by_one(target: PackedBackend, tokens: list[int]) -> Tensor:
    """Logits [T, V] of a text read token by token in the first slot."""
    torch.set_num_threads(1)
    found = torch.empty(len(tokens), target.vocabulary)
    for place, token in enumerate(tokens):
        found[place] = scored(target, [[token]], [0], [place], [chain(0)])[0][0]
    return found
