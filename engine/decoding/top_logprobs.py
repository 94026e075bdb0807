"""Top-logprobs: top-k of p, q and the residual per position, for requests that ask for detail."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specchat.engine.round import Candidate, Detail

MOST = 64
"""Entries per list that graphs are made for; longer lists are packed without one."""

Names = Callable[[int], str]


def pack(
    logits: Tensor,
    p: Tensor | None,
    greedy: Tensor,
    q: Tensor | None,
    drafted: Tensor,
    last: Tensor,
    k: int,
    left: Tensor | None = None,
) -> Tensor:
    """Pack top-k of p, q and norm(max(0, p - q)), and entropies in nats, into one tensor for the copy to the host.

    For a greedy row p is the softmax at temperature 1, as its standardised distribution is one-hot.

    Args:
        logits: [B, γ+1, V].
        p: standardised target distributions [B, γ+1, V]; None if all rows are greedy.
        greedy: [B], bool.
        q: draft distributions [B, γ, V]; None if all are one-hot.
        drafted: [B, γ].
        last: [B], the last token of each row.
        k: entries per list.
        left: [B, V], up to a factor, the residual of trees, where several tokens per position were rejected; ignored
            for greedy rows.

    Returns:
        int32 [B, γ+1, 6k+4]: three lists of k ids and k probabilities (float32 bits), then two entropies, and p of the
        drafted token and of the last one at each position.
    """
    soft = logits.float().softmax(-1)
    target = soft if p is None else torch.where(greedy[:, None, None], soft, p)
    draft = torch.zeros_like(target)
    if q is not None:
        draft[:, :-1] = q.nan_to_num(nan=0.0)  # as acceptance takes what is not a number
    else:
        draft[:, :-1].scatter_(-1, drafted[..., None], 1.0)
    rest = (target - draft).clamp_(min=0)
    if left is not None:
        rest = torch.where(greedy[:, None, None], rest, left[:, None])
    residual = rest / rest.sum(-1, keepdim=True).clamp_(min=torch.finfo(torch.float32).tiny)
    columns: list[Tensor] = []
    for distribution in (target, draft, residual):
        top = distribution.topk(min(k, distribution.shape[-1]))
        columns += [top.indices.int(), top.values.view(torch.int32)]
    entropies = torch.stack([torch.special.entr(d).sum(-1) for d in (target, draft)], -1)
    tokens = torch.nn.functional.pad(drafted, (0, 1))
    chosen = torch.stack([tokens, last[:, None].expand_as(tokens)], -1)
    return torch.cat([*columns, entropies.view(torch.int32), target.gather(-1, chosen).view(torch.int32)], -1)


def unpack(
    packed: Sequence[Sequence[int]], tested: int, corrected: bool, name: Names, wanted: int
) -> tuple[Detail, ...]:
    """Details of one row from its rows [γ+1][6k+4] of `pack`, on the host.

    Args:
        tested: number of tested tokens; their details come first, then that of the last token.
        corrected: whether the last token corrects the last tested one, at the same position.
        name: gives the text of a token id.
        wanted: entries per list, at most k.
    """
    judged = [_detail(packed[i], name, wanted, drafted=True, last=False) for i in range(tested)]
    at = tested - 1 if corrected else tested
    return (*judged, _detail(packed[at], name, wanted, drafted=corrected, last=True))


def _detail(values: Sequence[int], name: Names, wanted: int, *, drafted: bool, last: bool) -> Detail:
    k = (len(values) - 4) // 6
    floats = torch.tensor(values, dtype=torch.int32).view(torch.float32).tolist()

    def listed(which: int) -> tuple[Candidate, ...]:
        ids = values[2 * which * k :][: min(wanted, k)]
        probabilities = floats[(2 * which + 1) * k :][: min(wanted, k)]
        return tuple(Candidate(i, name(i), p) for i, p in zip(ids, probabilities, strict=True) if p > 0)

    return Detail(
        target=listed(0),
        draft=listed(1) if drafted else (),
        residual=listed(2) if last and drafted else (),
        target_entropy=floats[-4],
        draft_entropy=floats[-3] if drafted else 0.0,
        probability=floats[-1] if last else floats[-2],
    )
