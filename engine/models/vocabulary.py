"""Vocabulary check for a model beside a target: token ids must mean the same text in both."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from specchat.engine.errors import EngineError


def check_vocabularies(target: Any, draft: Any, target_eos: Collection[int], draft_eos: Collection[int]) -> None:
    """Check that a draft's token ids mean the same tokens as the target's.

    Args:
        target: tokenizer of the target (transformers).
        draft: tokenizer of the draft.
        target_eos: EOS ids of the target.
        draft_eos: EOS ids of the draft.

    Raises:
        EngineError: as `check_token_ids`, or no EOS token is shared.
    """
    check_token_ids(target, draft, "draft")
    ours, theirs = _by_id(target), _by_id(draft)
    if not set(target_eos) & set(draft_eos):
        raise EngineError(
            f"the draft ends its replies with {_names(theirs, draft_eos)} and the target with "
            f"{_names(ours, target_eos)}; choose a draft of the same family"
        )


def check_token_ids(target: Any, other: Any, role: str) -> None:
    """Check that the ids of another model's tokens mean the same tokens as the target's.

    Models of one family pad their embeddings to different sizes (Qwen2.5: 151,936 and 152,064), so only ids that
    both tokenizers know are compared, and one may know more than the other only at the tail.

    Args:
        target: tokenizer of the target (transformers).
        other: tokenizer of the other model.
        role: what the other model is beside the target, for people: draft.

    Raises:
        EngineError: tokens differ (the first is named), or ids do not nest.
    """
    ours, theirs = _by_id(target), _by_id(other)
    for number in sorted(ours.keys() & theirs.keys()):
        if ours[number] != theirs[number]:
            raise EngineError(
                f"the {role}'s vocabulary is not the target's: token {number} is {theirs[number]!r} in the {role} and "
                f"{ours[number]!r} in the target; choose a {role} of the same family"
            )
    shared = len(ours.keys() & theirs.keys())
    if shared < min(len(ours), len(theirs)):
        raise EngineError(
            f"the {role}'s vocabulary is not the target's: they share {shared} token ids of {len(ours)} and "
            f"{len(theirs)}; choose a {role} of the same family"
        )


def _by_id(tokenizer: Any) -> dict[int, str]:
    return {number: text for text, number in tokenizer.get_vocab().items()}


def _names(vocabulary: dict[int, str], ids: Collection[int]) -> str:
    return ", ".join(repr(vocabulary.get(i, str(i))) for i in sorted(ids)) or "nothing"
