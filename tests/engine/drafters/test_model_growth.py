"""Trees that a draft model grows in one call of the kernels: those of the reference, whatever it has read before."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from specchat.engine import Engine, Request, Sampling
from specchat.engine.backends.packed import PackedBackend
from specchat.engine.decoding.draft import Draft, RowOrder
from specchat.engine.decoding.tree_growth import grow
from specchat.engine.decoding.tree_mask import TreePlace
from specchat.engine.drafters.draft_model import DraftCache, Member, ModelDrafter, scores_of
from specchat.engine.drafters.model_steps import ModelSteps
from specchat.engine.kernels.drafters import Scores
from specchat.engine.models.packed.load import PackedModel
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.sequence import SequenceState
from tests.engine.drafters.head.test_growing_on_kernels import SAMPLINGS, assert_alike, budget
from tests.engine.drafters.models import pack
from tests.engine.families import write_family
from tests.engine.rows import row_of
from tests.engine.tiny import rounds_of, run_together, tiny_engine

pytestmark = pytest.mark.usefixtures("kernels", "one_thread")
COLUMNS = 120
XTC = Sampling(temperature=1.0, xtc_probability=0.5, xtc_threshold=0.05)
PENALISED = Sampling(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2, logit_bias=((7, 3.0),))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PackedModel:
    folder = tmp_path_factory.mktemp("model")
    return pack(write_family("llama", folder / "llama", initializer_range=0.4), folder)  # sure of some tokens


class Both:
    """A draft model next to a target of some vocabulary, and the reference, which reads each path from the start."""

    def __init__(self, model: PackedModel, more: int = 0) -> None:
        self.words = model.vocab_size + more
        drafting = PackedBackend(model, 3, COLUMNS, 17)
        self._penalties = Penalties(3, COLUMNS, torch.device("cpu"))
        self._cache = DraftCache(drafting, 16)
        steps = ModelSteps(drafting.forward, drafting.graphs(1), self._penalties, self.words)
        self.drafter = ModelDrafter(Member("draft", self._cache, steps, drafting), trees=True)
        self._plain, self._known = PackedBackend(model, 1, COLUMNS, 17), min(model.vocab_size, self.words)
        self._rows: list[SequenceState] = []

    def admit(
        self, lengths: Sequence[int], samplings: Sequence[Sampling], chance: random.Random
    ) -> list[SequenceState]:
        """New rows of so many tokens."""
        for row in self._rows:
            self.drafter.release(row)
        self._rows = []
        for slot, (length, sampling) in enumerate(zip(lengths, samplings, strict=True)):
            request = Request(f"{slot}", prompt_ids=(1,), sampling=sampling)
            tokens = chance.choices(range(self._known), k=length)
            row = row_of(tokens, slot, request, seed=chance.getrandbits(64))
            row.rounds, row.text = chance.randrange(1000), Detokenizer(None, ())
            self.drafter.admit(row)
            while self.drafter.unread(row):
                self.drafter.prefill([row])
            self._rows.append(row)
        return self._rows

    @torch.inference_mode()
    def reference(self, orders: Sequence[RowOrder]) -> list[Draft]:
        """The same drafts, by other passes."""
        rows, drafted = {order.row.slot: order.row for order in orders}, dict[tuple[int, int], int]()

        def logits(slot: int, path: Sequence[int]) -> Tensor:
            text = [*rows[slot].tokens, *path]
            after = self._plain.forward(torch.tensor([text]), [0], [0])[:, -1:, : self._known]
            adjustment = self._penalties.of([rows[slot]], drafts=True)
            return (
                adjustment.apply(after, torch.tensor([path], dtype=torch.long), first=len(path))
                if adjustment
                else after
            )[0]

        def expand(places: Sequence[TreePlace], _: Sequence[int]) -> Scores:
            drafted.update({(place.slot, place.column): place.token for place in places})
            paths = [
                (place.slot, [drafted[place.slot, each] for each in (*place.path, place.column)]) for place in places
            ]
            return scores_of(torch.cat([logits(*each) for each in paths]))

        return grow(orders, scores_of(torch.cat([logits(slot, ()) for slot in rows])), expand, range(self._known))[0]

    def accept(self, draft: Draft, row: SequenceState, chance: random.Random) -> None:
        """A branch of a draft is accepted, and the target's own token follows: sometimes one that was drafted."""
        node = chance.choice([chance.randrange(len(draft.tree) + 1), draft.tree.depths.index(draft.tree.depth)])
        after = [draft.tokens[each - 1] for each, parent in enumerate(draft.tree.parents, 1) if parent == node]
        emitted = [draft.tokens[each - 1] for each in draft.tree.path(node)] if node else []
        emitted.append(chance.choice([*after, chance.randrange(self._known)]))
        row.tokens += emitted
        row.rounds += 1
        self.drafter.on_accepted(row, emitted)


@pytest.mark.parametrize("more", [0, 64, -40])
def test_one_call_gives_what_the_reference_gives(more: int, model: PackedModel) -> None:
    """Rows of any kind: greedy, drawn, filtered, penalised; next to a target that has as many tokens, more or fewer."""
    chance, both = random.Random(5), Both(model, more)
    sizes, steps, branching = set[int](), set[int](), False
    for _ in range(20):
        count = chance.randrange(1, 4)
        samplings = [chance.choice((*SAMPLINGS, SAMPLINGS[0], XTC, PENALISED)) for _ in range(count)]
        rows = both.admit([chance.choice((1, 2, 3, 20, 37)) for _ in range(count)], samplings, chance)
        for _ in range(3):
            gammas = [chance.choice((1, 2, 3, 4, 8, 12, 16)) for _ in rows]
            orders = [
                RowOrder(row, gamma, budget(chance, chance.choice((None, gamma))))
                for row, gamma in zip(rows, gammas, strict=True)
            ]
            ours, theirs = both.drafter.propose(orders), both.reference(orders)
            assert_alike(ours, theirs)
            for draft, row in zip(ours, rows, strict=True):
                both.accept(draft, row, chance)
                sizes.add(len(draft.tree))
                steps.add(draft.steps)
                branching |= draft.tree.branches
    assert {0, 1} < sizes, "the trees must differ for this to show anything"
    assert min(len(sizes), len(steps)) > 4
    assert branching


@contextmanager
def engine_of(model: PackedModel, rounds: int) -> Iterator[Engine]:
    """An engine whose target may run `rounds` rounds in a call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackedBackend, "capabilities", replace(PackedBackend.capabilities, rounds=rounds))
        with tiny_engine(model, model, slots=3, chunk=8, seed=3) as engine:  # type: ignore[arg-type]
            yield engine


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.7, seed=1), Sampling(1.0), replace(PENALISED, temperature=0.9)]
)
def test_rounds_of_one_call_draft_what_they_would_one_by_one(sampling: Sampling, model: PackedModel) -> None:
    """The target is the draft model; with a seed it accepts other branches than the likeliest."""
    found = []
    for rounds, batch in product((1, 4), (1, 3)):
        asked = [
            Request(f"{n}", prompt_ids=tuple(range(5 + n, 20)), drafter="model-tree", gamma=3 + n, max_tokens=60)
            for n in range(3)
        ]
        with engine_of(model, rounds) as engine:
            replies = run_together(engine, [replace(each, sampling=sampling) for each in asked], batch)
        found.append([[(each.drafted, each.accepted, each.last) for each in rounds_of(events)] for events in replies])
    assert found[0] == found[1] == found[2] == found[3]
    assert sum(accepted for events in found[0] for _, accepted, _ in events) > 30
