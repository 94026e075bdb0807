"""Many sampled replies to one prompt, and whether their tokens are distributed as the target says."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from specchat.engine import Engine, Event, Request, Sampling
from specchat.engine.models.load import LoadedModel
from specchat.engine.sequence.sequence import SequenceState
from tests.engine.tiny import ids_of, run_together

PLAIN = Sampling(temperature=1.0)


def sampled(
    engine: Engine, drafter: str, prompt: tuple[int, ...], count: int, *, sampling: Sampling = PLAIN
) -> list[list[Event]]:
    """Events of `count` replies of three tokens with drafts for two positions."""
    options = {"drafter": drafter, "gamma": 2, "max_tokens": 3, "sampling": sampling}
    requests = [Request(f"r{number}", prompt_ids=prompt, **options) for number in range(count)]  # type: ignore[arg-type]
    return run_together(engine, requests)


def draw_drafts_of_seeds(patch: pytest.MonkeyPatch) -> None:
    """Let sampled replies with a seed draw their drafts, as replies without one do: these would not repeat."""
    made = SequenceState.__post_init__

    def draws(row: SequenceState) -> None:
        made(row)
        row.draws, row.drafting = not row.greedy, row.request.sampling

    patch.setattr(SequenceState, "__post_init__", draws)


def says(plain: LoadedModel, sampling: Sampling = PLAIN) -> Callable[[list[int]], Tensor]:
    """The distribution [V] after tokens, by a pass without a cache.

    Args:
        plain: a model that no runner has: a runner changes its attention.
        sampling: of its settings temperature and top-k alone.
    """

    @torch.inference_mode()
    def behind(tokens: list[int]) -> Tensor:
        logits: Tensor = plain.model(torch.tensor([tokens])).logits[0, -1] / sampling.temperature
        if sampling.top_k:
            logits[logits < logits.topk(sampling.top_k).values[-1]] = -torch.inf
        return logits.softmax(-1)

    return behind


def check_distribution(
    events: Sequence[Sequence[Event]],
    prompt: Sequence[int],
    p: Callable[[list[int]], Tensor],
    *,
    places: int = 3,
    least: int = 150,
) -> int:
    """χ² of the token at each place after the most frequent beginning, as long as `least` replies have it.

    Args:
        events: of each reply.
        prompt: of all.
        p: the distribution [V] after tokens.
        places: most tokens of a reply that are looked at.
        least: replies with one beginning that χ² needs.

    Returns:
        The places that were tested.
    """
    replies = [ids_of(each) for each in events]
    text: list[int] = []
    for place in range(places):
        behind = torch.tensor([each[place] for each in replies if each[:place] == text and len(each) > place])
        if len(behind) < least:
            break
        assert abs(z_score(behind, p([*prompt, *text]))) < 4
        text.append(int(behind.bincount().argmax()))
    return len(text)


def z_score(tokens: Tensor, probabilities: Tensor) -> float:
    """How far a sample lies from a distribution, in standard deviations of χ² (Wilson-Hilferty).

    Args:
        tokens: the sample [N], int64.
        probabilities: [V]; categories expected fewer than 5 times are pooled.
    """
    n = tokens.numel()
    expected = probabilities.double() * n
    observed = torch.bincount(tokens, minlength=probabilities.numel()).double()
    assert not bool(observed[expected == 0].any()), "a token of probability 0 was drawn"
    rare = expected < 5
    observed = torch.cat([observed[~rare], observed[rare].sum()[None]])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    observed, expected = observed[expected > 0], expected[expected > 0]
    df = expected.numel() - 1
    if df == 0:
        return 0.0
    chi2 = ((observed - expected).square() / expected).sum().item()
    return float(((chi2 / df) ** (1 / 3) - (1 - 2 / (9 * df))) / (2 / (9 * df)) ** 0.5)
