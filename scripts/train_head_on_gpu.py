"""Trains a draft head further on one GPU, on text that the target writes in turns with the training.

Run from the repository: python scripts/train_head_on_gpu.py TARGET HEAD OUT --prompts FILE.jsonl --minutes N

TARGET is a folder with a Llama network in the format of transformers, HEAD a head for it (`specchat distill`), FILE
what `scripts/make_training_prompts.py` writes. `specchat distill` does the same on any device and for every target, and
keeps its text on disk. Here thousands of conversations are written at once as CUDA graphs, and nothing is stored: a
wave of text is in memory with its hidden states until it was trained on. On a CPU it runs as well, for tests.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from specchat.engine.drafters.head.folder import read_head, save_head
from specchat.engine.drafters.head.network import DraftHead, rotate
from specchat.engine.models.load import LoadedModel, load_model
from specchat.engine.request import Sampling
from specchat.engine.tools.distill.text import own_questions, read_prompts
from specchat.engine.tools.distill.trainer import acceptance_loss, rounded

DEPTH = 4
"""Draft steps that the head is trained over."""
SHARE = 0.5
"""Fraction of positions trained beyond the first step."""
NOISE = 0.03
"""Standard deviation of the random factor on hidden states."""
FADE = 0.8
ROWS, LENGTH = 8, 256
"""Of an update."""
WAVES = 2
"""Waves in memory that updates draw from."""
RATE, LEAST, WARM_UP, DECAY = 1e-3, 0.02, 200, 0.1
AVERAGE = 0.999
"""Of the moving average of the weights, which is saved too."""
LONGEST = 300
"""Tokens of a prompt."""
N_GRAM = 4
"""Tokens that complete an n-gram seen before do not count: the suffix drafter knows them."""
OWN = 0.5
"""Fraction of conversations whose first question the target writes itself."""
QUESTIONS = 0.8
"""Temperature of user turns."""
GREEDY, SAMPLED, PENALISED = range(3)
SETTINGS = 0.25, 0.3, 0.45
"""Fractions of conversations that are greedy, at temperature 1, and greedy with the penalties of the default chat."""
CHAT = Sampling(repetition_penalty=1.1, dry_multiplier=0.8)


class Parts(NamedTuple):
    """Given parts of conversations: 0 precedes a user turn that the target writes, 1 its reply, 2 opens with a user
    turn; the others are prompts and given user turns, ready for a reply."""

    tokens: Tensor
    """[parts, tokens], padded."""
    lengths: Tensor
    following: Tensor
    """[parts]: the next given part of the same conversation, or -1."""
    firsts: Tensor
    """The parts that begin a conversation with a given prompt."""
    opens: Tensor
    """[parts], bool: those that begin a conversation."""


QUESTION, ANSWER, OPENING = range(3)


def parts_of(file: Path, model: LoadedModel, device: torch.device) -> Parts:
    """Encode a file of prompts."""
    own = own_questions(model.tokenizer, model.name)
    answer, question = own.follow_ups
    given: list[Sequence[int]] = [question[1:], answer[1:], own.prompt]  # both begin with the end of a turn
    following, firsts = [-1] * 3, []
    for script in read_prompts(file, model.tokenizer, model.name, LONGEST):
        firsts.append(len(given))
        texts = [script.prompt, *(part[1:] for part in script.follow_ups if len(part) <= LONGEST)]
        following += [len(given) + i + 1 for i in range(len(texts) - 1)] + [-1]
        given += texts
    longest = max(map(len, given))
    padded = [[*part, *[0] * (longest - len(part))] for part in given]
    lengths = [len(part) for part in given]
    begins = set(firsts)
    opens = [part == OPENING or part in begins for part in range(len(given))]
    return Parts(*(torch.tensor(each, device=device) for each in (padded, lengths, following, firsts, opens)))


@dataclass
class Text:
    """R rows of L columns, each row a few conversations one after the other."""

    tokens: Tensor
    """[R, L], int64."""
    begin: Tensor
    """[R, L], int64: the column where the token's conversation begins."""
    counted: Tensor
    """[R, L], bool: tokens of replies that the target chose."""
    log_total: Tensor
    """[R, L], float32: log-sum-exp of the logits."""
    tapped: Tensor
    """[R, L, taps x d]."""

    @classmethod
    def empty(cls, rows: int, length: int, width: int, dtype: torch.dtype, device: torch.device) -> Text:
        """Without text."""
        one = torch.zeros(rows, length, dtype=torch.long, device=device)
        tapped = torch.zeros(*one.shape, width, dtype=dtype, device=device)
        return cls(one, one.clone(), one.bool(), one.float(), tapped)

    def copy(self, other: Text, first: int) -> None:
        """Copy the rows of another text to the rows from `first` on."""
        for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True):
            mine[first : first + len(theirs)].copy_(theirs)


class Writer:
    """Writes waves of text: all rows are at the same column, and a finished conversation is followed by another one.

    Args:
        model: the target.
        taps: depths whose hidden states are kept.
        parts: given text.
        rows: conversations at once.
        length: columns of a wave.
    """

    def __init__(self, model: LoadedModel, taps: Sequence[int], parts: Parts, rows: int, length: int) -> None:
        network: Any = model.model
        self.config, self.taps, self.parts = network.config, taps, parts
        device, dtype = network.device, network.dtype
        self.device = device
        config = self.config
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.size = config.hidden_size // self.heads
        self.layers = [_layer(layer) for layer in network.model.layers]
        self.norm, self.embedding = network.model.norm.weight, network.model.embed_tokens.weight
        self.output = network.get_output_embeddings().weight
        self.text = Text.empty(rows, length, len(taps) * config.hidden_size, dtype, device)
        shape = rows, self.key_heads, length, self.size
        self.cache = [[torch.zeros(shape, dtype=dtype, device=device) for _ in "kv"] for _ in self.layers]
        at = torch.arange(length, device=device)
        rope = getattr(config, "rope_parameters", None) or {}
        steps = torch.arange(0, self.size, 2, device=device).float() / self.size
        angles = at[:, None].float() * float(rope.get("rope_theta", 10_000.0)) ** -steps
        self.turn = torch.cat([angles, angles], -1)
        self.columns = at
        vocabulary = len(self.output)
        ends = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        ends[list(model.eos_ids)] = True
        self.ends = ends
        names = model.tokenizer.convert_ids_to_tokens(list(range(len(model.tokenizer))))
        texts = [model.tokenizer.convert_tokens_to_string([name]) for name in names]
        breaks = [any(mark in text for mark in CHAT.dry_sequence_breakers) for text in texts]
        self.breakers = torch.tensor([*breaks, *[False] * (vocabulary - len(breaks))], device=device)
        self.settings = torch.tensor(SETTINGS, device=device).cumsum(0)
        zeros = torch.zeros(rows, dtype=torch.long, device=device)
        self.column = zeros[:1].clone()
        kept = "token", "begin", "part", "offset", "script", "left", "setting"
        self.state = {name: zeros.clone() for name in kept} | {
            "asking": zeros.bool(),
            "counts": zeros.bool(),
            "present": torch.zeros(rows, vocabulary, dtype=torch.bool, device=device),
            "runs": self.text.tokens.clone(),
            "unbroken": self.text.tokens.clone(),
        }
        self._attend, self._pick = attention(device), compiled(pick, device)
        self._replay: Callable[[], None] | None = None

    @torch.no_grad()
    def wave(self) -> Text:
        """Write text over all columns; it is overwritten by the next call."""
        self._begin()
        if self._replay is None:
            self._replay = captured(self._step, self._kept())
        for _ in range(self.text.tokens.shape[1]):
            self._replay()
        return self.text

    def _kept(self) -> list[Tensor]:
        return [self.column, *self.state.values()]

    def _begin(self) -> None:
        for tensor in self._kept():
            tensor.zero_()
        self.text.counted.zero_()
        state = self.state
        for name, value in self._fresh().items():
            state[name].copy_(value)
        state["token"].copy_(self.parts.tokens[state["part"], 0])
        state["offset"].fill_(1)

    def _fresh(self) -> dict[str, Tensor]:
        """State of new conversations in all rows."""
        rows = len(self.state["token"])
        drawn = torch.randint(len(self.parts.firsts), (rows,), device=self.device)
        own = torch.rand(rows, device=self.device) < OWN
        part = torch.where(own, OPENING, self.parts.firsts[drawn])
        setting = torch.bucketize(torch.rand(rows, device=self.device), self.settings).clamp(max=PENALISED)
        left = torch.randint(0, 2, (rows,), device=self.device)
        return {"part": part, "script": part, "asking": own, "setting": setting, "left": left}

    def _step(self) -> None:
        """Read one token in every row and choose the next, all on the device."""
        text, state, column = self.text, self.state, self.column
        token, begin = state["token"], state["begin"]
        text.tokens.index_copy_(1, column, token[:, None])
        text.begin.index_copy_(1, column, begin[:, None])
        self._match()
        repeated = state["runs"].amax(1) >= N_GRAM
        text.counted.index_copy_(1, column, (state["counts"] & ~repeated)[:, None])
        state["present"].scatter_(1, token[:, None], True)
        tapped, scores = self._read()
        text.tapped.index_copy_(1, column, tapped[:, None])
        text.log_total.index_copy_(1, column, scores.logsumexp(-1, keepdim=True))
        self._advance(self._choose(scores))
        column.add_(1)

    def _match(self) -> None:
        """Lengths of the repetitions that end at each earlier column and at this one, and those without breakers."""
        state, token, at = self.state, self.state["token"][:, None], self.columns
        same = (self.text.tokens == token) & (at >= state["begin"][:, None]) & (at < self.column)
        for name in ("runs", "unbroken"):
            found = torch.where(same, functional.pad(state[name][:, :-1], (1, 0)) + 1, 0)
            state[name].copy_(found if name == "runs" else found * ~self.breakers[token])

    def _read(self) -> tuple[Tensor, Tensor]:
        """Hidden states [R, taps x d] and logits [R, V], float32, of the tokens."""
        epsilon, d = self.config.rms_norm_eps, self.config.hidden_size
        stream = self.embedding[self.state["token"]]
        angle = self.turn.index_select(0, self.column)
        rotation = angle.cos()[None], angle.sin()[None]
        kept = {0: stream}
        for depth, (layer, (keys, values)) in enumerate(zip(self.layers, self.cache, strict=True), 1):
            mixed = functional.linear(functional.rms_norm(stream, (d,), layer.read_norm, epsilon), layer.qkv)
            mixed = mixed.view(len(stream), -1, self.size)
            asked = self.heads + self.key_heads
            turned = rotate(mixed[:, :asked], rotation)
            query = turned[:, : self.heads].reshape(len(stream), self.key_heads, -1, self.size)
            keys.index_copy_(2, self.column, turned[:, self.heads :, None])
            values.index_copy_(2, self.column, mixed[:, asked:, None])
            attended = self._attend(query, keys, values, self.state["begin"], self.column)
            stream = stream + functional.linear(attended.reshape(len(stream), -1), layer.out)
            gate_up = functional.linear(functional.rms_norm(stream, (d,), layer.mlp_norm, epsilon), layer.gate_up)
            gate, up = gate_up.chunk(2, dim=-1)
            stream = stream + functional.linear(functional.silu(gate) * up, layer.down)
            kept[depth] = stream
        kept[len(self.layers)] = functional.rms_norm(stream, (d,), self.norm, epsilon)
        scores = functional.linear(kept[len(self.layers)], self.output).float()
        return torch.cat([kept[tap] for tap in self.taps], -1), scores

    def _choose(self, scores: Tensor) -> Tensor:
        """One token per row [R], with the penalties and the temperature of its turn."""
        state = self.state
        counts = state["unbroken"][:, :-1].float()
        worth = CHAT.dry_multiplier * CHAT.dry_base ** (counts - CHAT.dry_allowed_length).clamp(max=30)
        worth = torch.where(counts >= CHAT.dry_allowed_length, worth, 0.0)
        repeats = torch.zeros_like(scores).scatter_reduce(1, self.text.tokens[:, 1:], worth, "amax")
        return self._pick(scores, state["present"], repeats, state["setting"][:, None], state["asking"][:, None])

    def _advance(self, sampled: Tensor) -> None:
        """Give the next tokens of given parts, else the sampled ones, and go on after the ends of turns."""
        state, parts = self.state, self.parts
        old = {name: value.clone() for name, value in state.items() if name not in ("present", "runs", "unbroken")}
        part, offset, asking = old["part"], old["offset"], old["asking"]
        giving = offset < parts.lengths[part]
        given = parts.tokens[part, offset.clamp(max=parts.tokens.shape[1] - 1)]
        state["token"].copy_(torch.where(giving, given, sampled))
        state["counts"].copy_(~giving & ~asking)
        state["offset"].add_(giving.long())
        begins = giving & (offset == 0) & parts.opens[part]
        state["begin"].copy_(torch.where(begins, self.column + 1, old["begin"]))
        state["present"].logical_and_(~begins[:, None])
        ended = ~giving & self.ends[sampled]
        following = parts.following[old["script"]]
        follows, asks = following >= 0, old["left"] > 0
        fresh = self._fresh()
        # After a question comes its reply, after a reply a given turn, a question of the target, or a new conversation.
        after = torch.where(follows, following, torch.where(asks, QUESTION, fresh["part"]))
        new = ended & ~asking & ~follows & ~asks
        state["part"].copy_(torch.where(ended, torch.where(asking, ANSWER, after), part))
        state["offset"].masked_fill_(ended, 0)
        state["asking"].copy_(torch.where(ended, ~asking & ~follows & asks, asking))
        state["left"].sub_((ended & ~asking & ~follows & asks).long())
        state["script"].copy_(torch.where(ended & ~asking & follows, following, old["script"]))
        for name, value in fresh.items():
            if name != "part":
                state[name].copy_(torch.where(new, value, state[name]))


class Layer(NamedTuple):
    """Weights of a layer, those that read the same input joined."""

    read_norm: Tensor
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


def _layer(layer: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    qkv = torch.cat([each.weight for each in (attention.q_proj, attention.k_proj, attention.v_proj)])
    gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
    return Layer(
        layer.input_layernorm.weight,
        qkv,
        attention.o_proj.weight,
        layer.post_attention_layernorm.weight,
        gate_up,
        mlp.down_proj.weight,
    )


def pick(scores: Tensor, present: Tensor, repeats: Tensor, setting: Tensor, asking: Tensor) -> Tensor:
    """One token per row [R] from logits [R, V], by the row's setting; `present` and `repeats` are for penalties."""
    penalty = CHAT.repetition_penalty
    penalised = torch.where(present, torch.where(scores > 0, scores / penalty, scores * penalty), scores) - repeats
    scores = torch.where(~asking & (setting == PENALISED), penalised, scores)
    temperature = torch.where(asking, QUESTIONS, torch.where(setting == SAMPLED, 1.0, 0.0))
    noise = -torch.rand_like(scores).clamp(min=1e-30).log().neg().log()
    return (scores + temperature * noise).argmax(-1)


def judge_drafts(scores: Tensor, log_total: Tensor, drafted: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient [N, V'] of the loss by a draft's scores, and Σ min(p, q) over all positions.

    Args:
        scores: [N, V'], of the target.
        log_total: [N, 1].
        drafted: [N, V'], of the draft.
        weight: [N, 1], of each position.
    """
    p, log_q = (scores.float() - log_total).exp(), drafted.float().log_softmax(-1)
    loss, toward = acceptance_loss(p, log_q)
    return (toward * weight).to(drafted.dtype), ((-loss).exp()[:, None] * weight).sum()


def compiled(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """A function as fused kernels on a GPU."""
    return torch.compile(function, dynamic=False) if device.type == "cuda" else function


def attention(device: torch.device) -> Callable[..., Tensor]:
    """`scripts.row_attention.attend` on a GPU, and the same slowly elsewhere."""
    if device.type == "cuda":
        from scripts.row_attention import attend

        return attend

    def attended(query: Tensor, keys: Tensor, values: Tensor, begin: Tensor, column: Tensor) -> Tensor:
        at = torch.arange(keys.shape[2], device=keys.device)
        mask = (at >= begin[:, None]) & (at <= column)
        return functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask[:, None, None])

    return attended


def captured(step: Callable[[], None], state: Sequence[Tensor]) -> Callable[[], None]:
    """A step as a CUDA graph, captured after two runs that leave no trace in `state`; on a CPU the step itself."""
    if state[0].device.type != "cuda":
        return step
    saved = [tensor.clone() for tensor in state]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for tensor, before in zip(state, saved, strict=True):
        tensor.copy_(before)
    return graph.replay


class Learner:
    """Updates of a head on windows of text.

    Args:
        head: in float32, changed in place.
        target: the network of the target.
        vocabulary: [V'], the tokens that can be drafted.
        text: what updates draw from.
    """

    def __init__(self, head: DraftHead, target: Any, vocabulary: Tensor, text: Text) -> None:
        self.head, self.text = head, text
        self.embedding = target.get_input_embeddings().weight
        self.scores = target.get_output_embeddings().weight[vocabulary].contiguous()
        device = text.tokens.device
        self.filled = torch.ones((), device=device)
        """Rows of the text that are written."""
        self.rate = torch.tensor(0.0, device=device)
        self.average = {name: weight.detach().clone() for name, weight in head.state_dict().items()}
        on_gpu = device.type == "cuda"
        self.optimiser = torch.optim.AdamW(
            head.parameters(), lr=self.rate, betas=(0.9, 0.95), weight_decay=DECAY, capturable=on_gpu, foreach=on_gpu
        )
        self.overlap = torch.zeros(DEPTH, device=device)
        self.agreement = False
        self._judge = compiled(judge_drafts, device)
        self.updates = 0
        self._replay: Callable[[], None] | None = None

    def update(self, done: float) -> None:
        """One update, when a fraction `done` of the time is over."""
        rate = RATE * (LEAST + (1 - LEAST) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))
        self.rate.fill_(rate * min(1.0, (self.updates + 1) / WARM_UP))
        self.updates += 1
        if self._replay is None:
            self._replay = captured(self._update, [self.overlap])
        self._replay()

    def _update(self) -> None:
        self.head.zero_grad(set_to_none=True)
        with rounded(self.head):
            with torch.autocast(self.rate.device.type, torch.bfloat16, enabled=self.scores.dtype != torch.float32):
                surrogate, overlap, _ = self.loss(self._drawn(ROWS), NOISE, SHARE)
            surrogate.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.head.parameters(), 1.0, foreach=True)
        self.optimiser.step()
        with torch.no_grad():
            now = self.head.state_dict()
            torch._foreach_lerp_(list(self.average.values()), [now[name] for name in self.average], 1 - AVERAGE)
            self.overlap.lerp_(overlap, 0.01)

    @torch.no_grad()
    def judge(self, rows: Tensor, batches: int) -> tuple[list[float], list[float]]:
        """Σ min(p, q), and how often both have the same first token, at each position of a draft, on these rows."""
        rates, firsts = torch.zeros(DEPTH, device=rows.device), torch.zeros(DEPTH, device=rows.device)
        self.agreement = True
        for _ in range(batches):
            with (
                rounded(self.head),
                torch.autocast(rows.device.type, torch.bfloat16, enabled=self.scores.dtype != torch.float32),
            ):
                _, overlap, first = self.loss(self._drawn(ROWS, rows), 0.0, 1.0)
            rates += overlap / batches
            firsts += first / batches
        self.agreement = False
        return rates.tolist(), firsts.tolist()

    def _drawn(self, count: int, among: Tensor | None = None) -> Text:
        """Random windows of the text."""
        device, length = self.rate.device, self.text.tokens.shape[1]
        rows = (torch.rand(count, device=device) * (self.filled if among is None else len(among))).long()
        rows = rows if among is None else among[rows]
        starts = torch.randint(0, max(length - LENGTH, 0) + 1, (count, 1), device=device)
        columns = starts + torch.arange(min(LENGTH, length), device=device)
        return Text(*(part[rows[:, None], columns] for part in vars(self.text).values()))

    def loss(self, text: Text, noise: float, share: float) -> tuple[Tensor, Tensor, Tensor]:
        """A scalar whose gradient is that of the loss; Σ min(p, q) and agreement of the first tokens by position."""
        total: Any = 0.0
        rates, firsts, weights = list[Tensor](), list[Tensor](), list[float]()
        d = self.embedding.shape[1]
        for drafted, places, anchors in unroll(self.head, self.embedding, text, DEPTH, share, noise):
            counted = text.counted[:, places + 1] & (text.begin[:, places + 1] == text.begin[:, anchors])
            weight = (counted / counted.sum().clamp(min=1)).flatten()[:, None]
            weights.append(FADE ** len(weights))
            with torch.no_grad():
                p_scores = text.tapped[:, places, -d:].flatten(0, 1) @ self.scores.T
                q_scores = drafted.flatten(0, 1).to(self.scores.dtype) @ self.scores.T
                log_total = text.log_total[:, places].flatten()[:, None]
                toward, rate = self._judge(p_scores, log_total, q_scores, weight)
                gradient = (toward @ self.scores).view(drafted.shape)
                rates.append(rate)
                same = p_scores.argmax(-1) == q_scores.argmax(-1) if self.agreement else weight[:, 0]
                firsts.append((same[:, None] * weight).sum())
            total = total + weights[-1] * (drafted.float() * gradient.float()).sum()
        return total / sum(weights), torch.stack(rates), torch.stack(firsts)


def unroll(head: DraftHead, embedding: Tensor, text: Text, depth: int, share: float, noise: float) -> Any:
    """As `engine.tools.distill.eagle.unroll`, in conversations that follow one another in a row.

    Yields:
        For each draft step, output states [B, N, d], the places [N] of the tokens read last, and the anchors [N].
    """
    device, length = text.tokens.device, text.tokens.shape[1]
    anchors = torch.arange(length - depth - 1, device=device)
    tapped = text.tapped[:, : len(anchors)]
    if noise:
        tapped = tapped * (1 + noise * torch.randn_like(tapped))
    state = head.fused(tapped)
    begin = text.begin[:, : len(anchors)]
    mask = (anchors <= anchors[:, None]) & (begin[:, :, None] == begin[:, None])
    groups = head.shape.heads // head.shape.key_heads
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for step in range(depth):
        stream = head.enter(state, functional.embedding(text.tokens[:, anchors + step + 1], embedding))
        if step:
            own = torch.eye(len(anchors), dtype=torch.bool, device=device).expand(len(mask), -1, -1)
            mask = torch.cat([mask, own], -1)
        query, key, value = head.read(stream, head.rotation((anchors + step)[None]))
        keys.append(key)
        values.append(value)
        known, told = (torch.cat(part, 2).repeat_interleave(groups, 1) for part in (keys, values))
        attended = functional.scaled_dot_product_attention(query, known, told, mask[:, None])
        drafted = head.finish(stream, attended)
        yield drafted, anchors + step + 1, anchors
        if step == 0 and share < 1:
            count = int(share * len(anchors))
            chosen = torch.rand(len(anchors), device=device).argsort()[:count].sort().values
            anchors, mask, drafted = anchors[chosen], mask[:, chosen], drafted[:, chosen]
        state = head.again(drafted)


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    """Train until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("head", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--rows", type=int, default=1536, help="conversations written at once")
    parser.add_argument("--length", type=int, default=768, help="columns of a wave")
    parser.add_argument("--passes", type=float, default=2.0, help="how often a token is trained on")
    given = parser.parse_args()
    began = time.perf_counter()
    ends = began + given.minutes * 60
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans for each shape
    model = load_model(given.target, device, dtype, lambda *_: None)
    target: Any = model.model.requires_grad_(False)
    card, head, vocabulary = read_head(given.head, model)
    writer = Writer(model, card.shape.taps, parts_of(given.prompts, model, device), given.rows, given.length)
    text = writer.text
    store = Text.empty(WAVES * given.rows, given.length, text.tapped.shape[-1], dtype, device)
    network = copy.deepcopy(head).float().to(device).requires_grad_(True)
    learner = Learner(network, target, vocabulary.to(device), store)
    used = torch.zeros(len(writer.output), dtype=torch.long, device=device)
    written, wave, log = 0, 0, given.out / "log.jsonl"
    given.out.mkdir(parents=True, exist_ok=True)
    starts = time.perf_counter()
    while time.perf_counter() < ends:
        turned = time.perf_counter()
        first = wave % WAVES * given.rows
        store.copy(writer.wave(), first)
        wave, written = wave + 1, written + text.tokens.numel()
        used += torch.bincount(text.tokens[text.counted], minlength=len(used))
        fresh = torch.arange(first, first + given.rows, device=device)
        synchronize()
        wrote = time.perf_counter() - turned
        learner.filled.fill_(min(wave, WAVES) * given.rows)
        rates, firsts = learner.judge(fresh, 16)
        for _ in range(int(given.passes * text.tokens.numel() / (ROWS * min(LENGTH, given.length)))):
            done = (time.perf_counter() - starts) / (ends - starts)
            learner.update(done)
            if learner.updates % 50 == 0:
                synchronize()
            if done > 1:
                break
        line = {
            "s": round(time.perf_counter() - began, 1),
            "tokens": written,
            "updates": learner.updates,
            "write_s": round(wrote, 2),
            "wave_s": round(time.perf_counter() - turned, 2),
            "overlap": [round(each, 4) for each in rates],
            "agreement": [round(each, 4) for each in firsts],
            "counted": round(text.counted.float().mean().item(), 3),
            "rate": learner.rate.item(),
        }
        print(json.dumps(line), flush=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if wave % 5 == 1 or time.perf_counter() > ends:
            made = replace(card, tokens=card.tokens + written, steps=card.steps + learner.updates)
            averaged = copy.deepcopy(head).float()
            averaged.load_state_dict({name: weight.cpu() for name, weight in learner.average.items()})
            for name, saved in (("last", network), ("average", averaged)):
                save_head(given.out / name, saved, vocabulary, made)
            torch.save(used.cpu(), given.out / "used.pt")


if __name__ == "__main__":
    main()
