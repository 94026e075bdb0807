"""Bias and penalties: each draft position in its own context, against transformers and against decoding one by one."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from specchat.engine.decoding.tree import Tree, chain
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.request import Request
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.settings import Sampling
from tests.engine.sampling.plainly import names, penalised, random_text

CPU = torch.device("cpu")
NONE: Any = None
TEXT: Any = SimpleNamespace(name=names)
EVERY_KIND = [
    Sampling(repetition_penalty=1.3),
    Sampling(presence_penalty=0.7),
    Sampling(),
    Sampling(logit_bias=((3, 5.0), (9, -100.0))),
    Sampling(repetition_penalty=0.8, presence_penalty=-1.5, logit_bias=((0, -2.5),)),
    Sampling(repetition_penalty=1.5, presence_penalty=2.0),
    Sampling(frequency_penalty=0.4),
    Sampling(repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=-0.9, logit_bias=((2, 1.5),)),
]
DRY = [
    Sampling(dry_multiplier=0.8, dry_sequence_breakers=()),
    Sampling(dry_multiplier=0.5, dry_base=2.0, dry_allowed_length=1, dry_sequence_breakers=("\1", "\2")),
    Sampling(dry_multiplier=1.5, dry_allowed_length=3, dry_penalty_last_n=20, dry_sequence_breakers=()),
    Sampling(dry_multiplier=0.8, dry_penalty_last_n=0),
    Sampling(dry_multiplier=0.8, repetition_penalty=1.2, logit_bias=((3, 5.0),), dry_sequence_breakers=("\5",)),
]
TREE = Tree((0, 0, 1, 1, 2, 3))


def make_row(sampling: Sampling, tokens: list[int], prompt_length: int, slot: int = 0) -> SequenceState:
    request = Request("r", prompt="x", sampling=sampling)
    return SequenceState(request, NONE, slot, tokens, prompt_length, len(tokens) - 1, seed=0, text=TEXT, drafter="none")


def one_by_one(logits: Tensor, sampling: Sampling, prompt: list[int], reply: list[int]) -> Tensor:
    """The adjusted logits [V] after a prompt and a reply, in plain words."""
    out = logits.float().clone()
    for token, bias in sampling.logit_bias:
        out[token] += bias
    if sampling.repetition_penalty != 1:
        repetition = RepetitionPenaltyLogitsProcessor(penalty=sampling.repetition_penalty)
        out = repetition(torch.tensor([prompt + reply]), out[None])[0]
    for token in set(reply):
        out[token] -= sampling.presence_penalty
    for token in reply:
        out[token] -= sampling.frequency_penalty
    return penalised(out, sampling, prompt + reply, names) if sampling.dry else out


def adjust(
    penalties: Penalties, rows: list[SequenceState], logits: Tensor, drafted: Tensor, inside: Tensor | None = None
) -> Tensor:
    adjustment = penalties.of(rows)
    return adjustment.apply(logits, drafted, inside)


@pytest.mark.parametrize("tree", [chain(0), chain(4), TREE], ids=["nothing", "chain", "tree"])
@pytest.mark.parametrize(("tokens", "dtype"), [(3, torch.float32), (8, torch.bfloat16)], ids=str)
def test_each_node_is_penalised_in_its_own_context(tokens: int, dtype: torch.dtype, tree: Tree) -> None:
    """Several rounds; few tokens, so that prompts, replies and drafts repeat themselves and each other."""
    rows = [
        make_row(sampling, random_text(tokens, 12 + 5 * i, seed=i), 3, slot=13 - i)
        for i, sampling in enumerate([*DRY, *EVERY_KIND])
    ]
    penalties = Penalties(slots=14, columns=128, device=CPU)
    inside, length = TreeMask.of([tree] * len(rows), len(tree) + 1, CPU).inside, len(tree)
    for turn in range(5):
        drafted = torch.tensor([random_text(tokens, length, seed=100 + turn + i) for i in range(len(rows))]).long()
        logits = (torch.randn(len(rows), length + 1, 12) * 3).to(dtype)
        before = logits.clone()
        adjusted = adjust(penalties, rows, logits, drafted, inside=inside)
        assert torch.equal(logits, before)
        assert adjusted.dtype == torch.float32
        for b, row in enumerate(rows):
            for node in range(length + 1):
                path = [drafted[b, place - 1].item() for place in tree.path(node)]
                wanted = one_by_one(logits[b, node], row.request.sampling, row.tokens[:3], row.tokens[3:] + path)
                torch.testing.assert_close(adjusted[b, node], wanted)
        for b, row in enumerate(rows):  # some of the draft is kept, and the last token is another
            row.tokens += [*drafted[b, : b % (length + 1)].tolist(), *random_text(tokens, 1, seed=turn)]


def test_long_repetitions_leave_logits_finite() -> None:
    row = make_row(Sampling(dry_multiplier=5.0, dry_base=100.0, dry_sequence_breakers=()), [1, 2] * 300, 1)
    nothing, inside = torch.zeros(1, 0, dtype=torch.long), TreeMask.of([chain(0)], 1, CPU).inside
    logits = adjust(Penalties(1, 1024, CPU), [row], torch.zeros(1, 1, 4), nothing, inside=inside)
    assert logits.isfinite().all()
    assert logits[0, 0].argmin() == 1


def test_the_next_row_of_a_slot_starts_afresh() -> None:
    penalties = Penalties(slots=1, columns=8, device=CPU)
    sampling = Sampling(repetition_penalty=2.0)
    logits, nothing = torch.ones(1, 1, 6), torch.zeros(1, 0, dtype=torch.long)
    assert adjust(penalties, [make_row(sampling, [1, 2, 3], 3)], logits, nothing).tolist() == [[[1, *[0.5] * 3, 1, 1]]]
    assert adjust(penalties, [make_row(sampling, [4, 1], 2)], logits, nothing).tolist() == [[[1, 0.5, 1, 1, 0.5, 1]]]


def test_a_row_of_broken_logits_breaks_no_other() -> None:
    rows = [make_row(Sampling(repetition_penalty=1.3, presence_penalty=1.0), [1, 2], 1, slot=i) for i in range(2)]
    logits = torch.randn(2, 2, 6)
    whole = adjust(Penalties(2, 8, CPU), rows, logits, torch.tensor([[3], [3]]))
    logits[0] = torch.nan
    assert torch.equal(adjust(Penalties(2, 8, CPU), rows, logits, torch.tensor([[3], [3]]))[1], whole[1])
