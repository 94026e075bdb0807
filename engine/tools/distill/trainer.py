"""A draft in training: its loss against the target's distributions, and updates for a given time, with checkpoints.

`cross_entropy` is the loss of the usual distillation. `acceptance_loss` is the negative logarithm of the chance
α = Σ min(p, q) that a drafted token is accepted (LK losses, likelihood form: Samarin et al. 2026, arXiv 2602.23881):
they are equal if one token has all of p; elsewhere a head that cannot follow p is not made to cover all of it.

Heads that run with quantised targets are trained for 4-bit weights by straight-through estimation (Bengio et al. 2013,
arXiv 1308.3432, section 2.3): the loss is that of the rounded weights, its gradient is applied to the full ones.
"""

from __future__ import annotations

import copy
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from specchat.engine.config import EngineConfig
from specchat.engine.drafters.head.drafter import HeadDrafter
from specchat.engine.drafters.head.folder import LoadedHead
from specchat.engine.errors import EngineError
from specchat.engine.files import replacing
from specchat.engine.kernels.packed_matrix import GROUP
from specchat.engine.models.disk import disk_errors
from specchat.engine.models.load import LoadedModel
from specchat.engine.models.packed.quantize import can_quantize
from specchat.engine.research.ngram import MAX_ORDER
from specchat.engine.tools.distill.text import Conversation, Corpus
from specchat.engine.tools.distill.work_folder import Distilled, StartingDraft
from specchat.engine.worker.assembly import Assembly, assemble_loaded

ROWS = 8
LENGTH = 256
"""Rows per batch, and tokens per row."""
CHECKPOINT_S = 120.0
_SUSPENDED_S = 30.0
"""Most that an update counts: it takes longer only if the process was suspended."""
_LEAST = 0.02
"""Fraction of the peak learning rate that is left at the end (cosine decay)."""
_WARM_UP = 20
_BETAS = (0.9, 0.95)
_DECAY = 0.1
_CLIP = 1.0
_POOL = 4
"""Shards that a batch is drawn from: few enough to fit into memory."""
CHUNK = 256
"""Positions per chunk of a loss: their scores fit into a processor's cache."""
_LEAST_OVERLAP = 1e-4
"""Lower bound of α in the gradient of its logarithm, so that no position outweighs all others."""
_FADE = 0.8
"""Weight of each draft position's loss relative to the one before (Cai et al. 2024, section 2.2.1; EAGLE-3)."""
_LARGEST = 15
"""Largest 4-bit code."""

Losses = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Function of p and log q, [N, V'] each: the loss [N] of each position, and its gradient [N, V'] by the scores."""


class Batch(NamedTuple):
    """Training text of one update: B sequences of T tokens each."""

    tokens: Tensor
    """[B, T], int64."""
    counted: Tensor
    """[B, T], bool: tokens that count in the loss."""
    tapped: Tensor
    """[B, T, taps x d]; the last d of them are the target's last hidden state."""
    log_total: Tensor
    """[B, T], float32: log-sum-exp of the target's logits over V."""


class Draft(ABC):
    """A kind of draft for a target, and the network in training once `begin` has made it.

    Args:
        model: the target, which is not trained.

    Attributes:
        noun: name of the draft, with its article.
        drafter: name of the drafter that evaluates it.
        files: names of the files of a finished draft.
        four_bits: whether its linear layers become 4-bit codes with a quantised target, and are trained for that.
        rate: peak learning rate.
        taps: depths of the target's hidden states that the training reads, the last one last.
        hidden: d.
        network: weights in float32 on the target's device.
        vocabulary: [V'], int64: the tokens that the loss is computed on.
        scores: [V', d]: the target's output embeddings of these tokens.

    Raises:
        EngineError: the target does not score its last hidden state with plain output embeddings.
    """

    noun: ClassVar[str]
    drafter = HeadDrafter.name
    files: ClassVar[tuple[str, str]]
    four_bits = False
    rate = 1.5e-3
    network: Any
    vocabulary: Tensor
    scores: Tensor

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        depth, self.hidden = last_state(model.model, model.name)
        self.taps: tuple[int, ...] = (depth,)

    @abstractmethod
    def start(self, folder: Path) -> StartingDraft:
        """Load a finished draft, to be trained further.

        Raises:
            EngineError: it was made for another target or has other sizes, or the folder is damaged.
        """

    def begin(self, vocabulary: Tensor, text: Iterable[Conversation] | None = None) -> None:
        """Make the network, with initial weights that are fitted on text; None if weights are loaded afterwards."""
        target: Any = self.model.model
        weight: Tensor = target.get_output_embeddings().weight
        self.vocabulary, self.scores = vocabulary, weight[vocabulary.to(weight.device)].contiguous()
        self.network = self.new_network(text).to(target.device)

    @abstractmethod
    def new_network(self, text: Iterable[Conversation] | None) -> nn.Module:
        """The network of `begin`."""

    def finish(self, text: Iterable[Conversation]) -> None:  # noqa: B027 most kinds add nothing
        """Add to the trained network what is made of its outputs along text."""

    @abstractmethod
    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss on a batch, and the expected acceptance rate at each position of a draft."""

    def assemble(self, config: EngineConfig) -> Assembly:
        """An engine's parts with a copy of the network in the target's dtype, rounded as it is trained."""
        with rounded(self.network, self.four_bits):
            head = copy.deepcopy(self.network).to(self.model.model.dtype).eval()
        return assemble_loaded(
            config, self.model, head=LoadedHead(head, self.vocabulary.to(self.model.device), self.model.name, 0)
        )

    @abstractmethod
    def save(self, folder: Path, made: Distilled) -> None:
        """Write weights and card, so that `--draft` loads them.

        Raises:
            EngineError: the disk is full or not writable.
        """


def last_state(target: Any, name: str) -> tuple[int, int]:
    """Depth and size d of the hidden state that a target's output embeddings score.

    Args:
        target: a network of transformers.
        name: display name, for the error.

    Raises:
        EngineError: the target changes the scores otherwise.
    """
    config = target.config.get_text_config()
    layers, hidden = int(config.num_hidden_layers), int(config.hidden_size)
    output = target.get_output_embeddings()
    if output is None or output.weight.shape[1] != hidden or getattr(output, "bias", None) is not None:
        raise EngineError(
            f"{name} does not score tokens with plain output embeddings: no draft head can be made for it"
        )
    probe = torch.zeros(1, 2, dtype=torch.long, device=target.device)
    with torch.inference_mode():
        out = target(input_ids=probe, output_hidden_states=True, use_cache=False)
        last = out.hidden_states[-1]
        alike = torch.allclose(output(last).float(), out.logits.float(), rtol=0.05, atol=0.05)
    if not alike or len(out.hidden_states) != layers + 1 or last.shape[-1] != hidden:
        raise EngineError(f"{name} changes its scores after the output embeddings: no draft head can be made for it")
    return layers, hidden


def positions_loss(
    drafts: Iterable[tuple[Tensor, Tensor]], vocabulary: Tensor, batch: Batch, losses: Losses
) -> tuple[Tensor, Tensor]:
    """Loss of all positions of a draft, later ones weighted less, and the expected acceptance rate at each.

    Args:
        drafts: for each position, output states [B, N, d] and the places [N] in the text of the tokens before it, where
            the target's distributions judge it.
        vocabulary: [V', d], the target's output embeddings of the tokens that can be drafted. p is not renormalised
            over them: probability outside adds nothing to the loss.
        batch: the text.
        losses: `cross_entropy` or `acceptance_loss`.
    """
    results = []
    for drafted, places in drafts:
        hidden = batch.tapped[:, places, -drafted.shape[-1] :].flatten(0, 1)
        log_total, counted = batch.log_total[:, places].flatten(), batch.counted[:, places + 1].flatten()
        results.append(ChunkedLoss.apply(drafted.flatten(0, 1), vocabulary, hidden, log_total, counted, losses))  # type: ignore[no-untyped-call]
    found, rates = map(torch.stack, zip(*results, strict=True))
    weights = _FADE ** torch.arange(len(found), device=found.device)
    return (weights * found).sum() / weights.sum(), rates


def cross_entropy(p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """-Σ p log q, and its gradient."""
    return -(p * log_q).sum(-1), log_q.exp().mul_(p.sum(-1, keepdim=True)).sub_(p)


def acceptance_loss(p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """-log Σ min(p, q), and its gradient."""
    q = log_q.exp()
    overlap = torch.minimum(p, q).sum(-1, keepdim=True).clamp_(min=_LEAST_OVERLAP)
    short = torch.where(q < p, q, 0.0)
    return -overlap.log()[:, 0], q.mul_(short.sum(-1, keepdim=True)).sub_(short).div_(overlap)


class ChunkedLoss(torch.autograd.Function):
    """Mean loss over the counted positions of output states [N, d], and the mean of Σ min(p, q), in chunks.

    The latter is the expected acceptance rate (Leviathan et al. 2023, Corollary 3.6). The gradient is computed in the
    forward pass, while a chunk's scores are in memory.
    """

    @staticmethod
    def forward(
        ctx: Any,
        drafted: Tensor,
        vocabulary: Tensor,
        hidden: Tensor,
        log_total: Tensor,
        counted: Tensor,
        losses: Losses,
    ) -> tuple[Tensor, Tensor]:
        index = counted.nonzero()[:, 0]
        weight = 1 / max(len(index), 1)
        loss, overlap = (torch.zeros((), device=drafted.device) for _ in range(2))
        gradient = torch.zeros_like(drafted)
        for part in torch.split(index, CHUNK):
            p = (hidden[part] @ vocabulary.T).float().sub_(log_total[part, None]).exp_()
            log_q = (drafted[part].to(vocabulary.dtype) @ vocabulary.T).float().log_softmax(-1)
            one, toward = losses(p, log_q)
            loss += one.sum() * weight
            overlap += torch.minimum(p, log_q.exp_()).sum() * weight
            gradient[part] = (toward.mul_(weight).to(vocabulary.dtype) @ vocabulary).to(gradient.dtype)
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(overlap)
        return loss, overlap

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, loss: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        return ctx.saved_tensors[0] * loss, *[None] * 5


@contextmanager
def rounded(network: nn.Module, four_bits: bool = True) -> Iterator[None]:
    """Round the weights of linear layers to 4-bit codes inside the context."""
    layers = [each for each in network.modules() if type(each) is nn.Linear and can_quantize(each.weight)]
    full = [(layer, layer.weight.data) for layer in layers if four_bits]
    try:
        for layer, weight in full:
            layer.weight.data = round_to_four_bits(weight)
        yield
    finally:
        for layer, weight in full:
            layer.weight.data = weight


def round_to_four_bits(weight: Tensor) -> Tensor:
    """Weights [N, K] after `quantize(weight, "q4")` and dequantisation, on any device."""
    groups = weight.detach().float().view(len(weight), -1, GROUP)
    least = groups.amin(-1, keepdim=True).half().float()
    above = groups - least
    scale = (above.amax(-1, keepdim=True) / _LARGEST).half().float()
    codes = (above * scale.reciprocal().nan_to_num(posinf=0.0)).clamp(0, _LARGEST).round()
    return (least + codes * scale).flatten(1).to(weight.dtype)


class Trainer:
    """Trains a draft, whose network is changed in place.

    Args:
        draft: with its network.
        checkpoint: file to resume from, if it exists, and to write to.
        rate: peak learning rate.
    """

    def __init__(self, draft: Draft, checkpoint: Path, rate: float) -> None:
        self.steps = 0
        self.seconds = 0.0
        """Time of all updates, earlier runs included."""
        self.overlap: list[float] = []
        """Mean Σ min(p, q) per position of a draft over the last batches, without tokens that the n-gram drafter would
        propose."""
        self._draft, self._file, self._rate = draft, checkpoint, rate
        self._device = next(draft.network.parameters()).device
        self._random = torch.Generator().manual_seed(0)
        self._optimiser = torch.optim.AdamW(draft.network.parameters(), lr=rate, betas=_BETAS, weight_decay=_DECAY)
        if checkpoint.is_file():
            state = torch.load(checkpoint, map_location=self._device, weights_only=True)
            draft.network.load_state_dict(state["head"])
            self._optimiser.load_state_dict(state["optimiser"])
            self._random.set_state(state["random"].cpu())
            self.steps, self.seconds = state["steps"], state["seconds"]

    def run(self, corpus: Corpus, seconds: float) -> Iterator[None]:
        """Train until `seconds` in total have been spent, earlier runs included. Yields after every update.

        Raises:
            EngineError: the disk is full.
        """
        saved = self.seconds
        batches = self._batches(corpus)
        while self.seconds < seconds:
            began = time.perf_counter()
            self.update(next(batches), self.seconds / seconds)
            self.seconds += min(time.perf_counter() - began, _SUSPENDED_S)
            if self.seconds - saved >= CHECKPOINT_S:
                self.save()
                saved = self.seconds
            yield
        self.save()

    def save(self) -> None:
        """Write the checkpoint atomically."""
        state = {
            "head": self._draft.network.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "random": self._random.get_state(),
            "steps": self.steps,
            "seconds": self.seconds,
        }
        with disk_errors(self._file.parent, "saving the training"), replacing(self._file) as part:
            torch.save(state, part)

    def update(self, batch: Batch, done: float) -> None:
        """Update the weights by one batch, when a fraction `done` of the time is over."""
        network, dtype = self._draft.network, self._draft.model.model.dtype
        rate = self._rate * (_LEAST + (1 - _LEAST) * 0.5 * (1 + math.cos(math.pi * done)))
        for group in self._optimiser.param_groups:
            group["lr"] = rate * min(1.0, (self.steps + 1) / _WARM_UP)
        self._optimiser.zero_grad()
        with rounded(network, self._draft.four_bits):
            with torch.autocast(self._device.type, torch.bfloat16, enabled=dtype != torch.float32):
                loss, overlap = self._draft.loss(batch)
            loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), _CLIP)
        self._optimiser.step()
        self.steps += 1
        new = overlap.tolist()
        self.overlap = [0.95 * old + 0.05 * now for old, now in zip(self.overlap or new, new, strict=True)]

    def _batches(self, corpus: Corpus) -> Iterator[Batch]:
        """Endless batches from a few shards at a time, in a new random order for each epoch."""
        while True:
            shards = corpus.shards
            order = torch.randperm(len(shards), generator=self._random).tolist()
            for at in range(0, len(order), _POOL):
                pool = [talk for i in order[at : at + _POOL] for talk in corpus.read(shards[i])]
                turn = torch.randperm(len(pool), generator=self._random).tolist()
                for first in range(0, max(len(turn) - ROWS, 0) + 1, ROWS):
                    yield self._batch([pool[i] for i in turn[first : first + ROWS]])

    def _batch(self, conversations: list[Conversation]) -> Batch:
        """A random window of each conversation; short ones are padded with positions that do not count."""
        rows = []
        for talk in conversations:
            start = int(torch.randint(max(len(talk.tokens) - LENGTH, 0) + 1, (), generator=self._random))
            counted = talk.sampled & ~repeated(talk.tokens)
            rows.append([_stretch(part, start) for part in (talk.tokens, counted, talk.features, talk.log_total)])
        tokens, *others = (torch.stack(part).to(self._device) for part in zip(*rows, strict=True))
        return Batch(tokens.long(), *others)


def repeated(tokens: Tensor) -> Tensor:
    """Tokens [T], bool, that complete an n-gram seen before, which the n-gram drafter would propose."""
    seen: set[tuple[int, ...]] = set()
    marks = []
    ids = tokens.tolist()
    for end in range(1, len(ids) + 1):
        gram = tuple(ids[max(end - MAX_ORDER, 0) : end])
        marks.append(gram in seen)
        seen.add(gram)
    return torch.tensor(marks)


def _stretch(tensor: Tensor, start: int) -> Tensor:
    part = tensor[start : start + LENGTH]
    return torch.cat([part, part.new_zeros(LENGTH - len(part), *part.shape[1:])])
