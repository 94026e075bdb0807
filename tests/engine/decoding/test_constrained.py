"""Drafts of constrained rows: cut where the constraint forbids a token, and extended by the text that it forces."""

from collections.abc import Sequence

import pytest
import torch

from specchat.engine import Constraint, ConstraintKind
from specchat.engine.decoding.constrained import ConstrainedDrafter
from specchat.engine.decoding.draft import Draft, RowOrder
from specchat.engine.decoding.drafter import Drafter, DrafterProfile
from specchat.engine.decoding.tree_growth import fixed_budget
from specchat.engine.sequence.row_constraint import Constraints
from tests.engine.rows import row_of
from tests.engine.tiny import EOS, VOCABULARY, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
CONSTRAINTS = Constraints(TOKENIZER, VOCABULARY, [EOS])


class Scripted(Drafter):
    """Drafts a text.

    Args:
        text: of the drafts.
        drawn: whether its tokens are drawn.
    """

    name = "script"
    profile = DrafterProfile((0,), {0: 0.6})

    def __init__(self, text: str, *, drawn: bool = False) -> None:
        self._tokens, self._drawn = TOKENIZER.encode(text), drawn

    def propose(self, orders: Sequence[RowOrder]) -> list[Draft]:
        """The text."""
        q = torch.full((len(self._tokens), VOCABULARY), 1 / VOCABULARY) if self._drawn else None
        made = Draft.chain(self._tokens, [0] * len(self._tokens))
        return [Draft(made.tokens, made.tree, q, buckets=made.buckets)] * len(orders)


def draft_of(pattern: str, drafter: Scripted, *, branches: bool = True) -> tuple[Draft, set[str]]:
    """The draft at the beginning of a reply that follows a pattern, and the texts of its leaves."""
    row = row_of([0, 0])
    row.constraint = CONSTRAINTS.of(Constraint(ConstraintKind.REGEX, pattern), "", row.tokens, len(row.tokens))
    order = RowOrder(row, gamma=8, budget=fixed_budget(8), free=True)
    (draft,) = ConstrainedDrafter(drafter, branches=branches).propose([order])
    draft.check(order, VOCABULARY)
    tree = draft.tree
    leaves = [node for node, children in enumerate(tree.children) if not children]
    return draft, {TOKENIZER.decode([draft.on_host[node - 1] for node in tree.path(leaf)]) for leaf in leaves}


@pytest.mark.parametrize(
    ("branches", "texts"), [(True, {"abxyz-le!", "abxyz-ri!"}), (False, {"abxyz-"})], ids=["tree", "chain"]
)
def test_forced_text_and_a_choice_of_few_follow_a_draft(branches: bool, texts: set[str]) -> None:
    draft, found = draft_of("[a-h][a-h]xyz-(le|ri)!", Scripted("abq"), branches=branches)
    assert found == texts
    assert [source.name for source in draft.sources] == ["script+grammar"]


def test_forced_text_after_drawn_tokens_is_certain() -> None:
    draft, found = draft_of("[a-h][a-h]xyz-(le|ri)!", Scripted("ab", drawn=True))
    assert found == {"abxyz-"}
    assert draft.q is not None
    assert draft.q[:2].allclose(torch.tensor(1 / VOCABULARY))
    assert draft.q[2:].argmax(-1).tolist() == TOKENIZER.encode("xyz-")
    assert draft.q[2:].amax(-1).eq(1).all()
    assert draft.q.sum(-1).allclose(torch.tensor(1.0))


def test_certain_text_comes_first_and_alone() -> None:
    draft, found = draft_of("xyz[a-h][a-h]!", Scripted("xyzabq"))
    assert found == {"xyz"}
    assert [source.name for source in draft.sources] == ["grammar"]


def test_a_draft_loses_what_is_forbidden_and_gains_what_is_forced() -> None:
    assert draft_of("[a-h][a-h]![a-h]", Scripted("abq"))[1] == {"ab!"}
