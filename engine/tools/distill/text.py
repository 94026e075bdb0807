"""Training text: conversations written by the target, many at once, or replies that it has written before.

The target gets the user turns, or the chat template up to the user turn and writes that turn too (as in Magpie: Xu et
al. 2024); then it writes its reply, then possibly further turns. Finished conversations are replaced at once, so the
batch stays full. They are kept on disk with its hidden states.

It reads replies of the past once; nothing is generated. This is online speculative decoding at the pace of its user
(Liu et al. 2023, arXiv 2310.07177, section 3): the draft is distilled on the queries that its target really answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, cycle, repeat
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from specchat.engine.decoding.backend import Backend
from specchat.engine.drafters.head.folder import HeadAcceptance
from specchat.engine.errors import EngineError, check, errors_as
from specchat.engine.files import make_folder, replacing
from specchat.engine.models.disk import disk_errors, require_space
from specchat.engine.progress import Progress
from specchat.engine.request import DEFAULT_GAMMA, NO_DRAFTER, Request
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sampling.sampler import SamplingRows, draw, standardise
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.sequence.template import render
from specchat.engine.settings import Sampling
from specchat.engine.tools.data_sets import read_entries
from specchat.engine.tools.distill.work_folder import DistillOptions
from specchat.engine.tools.evaluate.drafters import evaluate
from specchat.engine.tools.evaluate.reading import passes
from specchat.engine.tools.evaluate.rounds import row_of
from specchat.engine.tools.evaluate.texts import EvaluateOptions, Text, texts_of
from specchat.engine.tools.prompts import Prompt

_QUESTIONS = Sampling(temperature=0.8)
"""Sampling of user turns; at temperature 1 small models write nonsense."""
_MARKS = ("<<first>>", "<<second>>", "<<third>>")


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation with the target's hidden states."""

    tokens: Tensor
    """[T], int32."""
    sampled: Tensor
    """[T], bool: whether the target sampled the token; the others were given (template, prompts)."""
    features: Tensor
    """[T, taps x hidden size]: the tapped hidden states of each token."""
    log_total: Tensor
    """[T], float32: log-sum-exp over V of the target's logits at each token."""


class Corpus:
    """Shards of one folder, numbered in the order of writing, and shards of other folders.

    Args:
        folder: folder for new shards; created with the first.
        others: folders whose shards are only read.
    """

    def __init__(self, folder: Path, others: Sequence[Path] = ()) -> None:
        self.folder = folder
        self._others = others

    @property
    def shards(self) -> list[Path]:
        """Complete shards, oldest first, folder by folder."""
        return [shard for folder in (*self._others, self.folder) for shard in sorted(folder.glob("text-*.safetensors"))]

    @property
    def tokens(self) -> int:
        """Tokens in all shards."""
        total = 0
        for shard in self.shards:
            with safe_open(shard, framework="pt") as opened:
                total += int(opened.get_tensor("lengths").sum())
        return total

    def conversations(self) -> Iterator[Conversation]:
        """All conversations, oldest first, with one shard in memory at a time."""
        return chain.from_iterable(map(self.read, self.shards))

    def add(self, talks: Sequence[Conversation]) -> None:
        """Write one more shard atomically.

        Raises:
            EngineError: the disk is full or not writable.
        """
        tensors = {part.name: torch.cat([getattr(talk, part.name) for talk in talks]) for part in fields(Conversation)}
        tensors["lengths"] = torch.tensor([len(talk.tokens) for talk in talks])
        number = len(Corpus(self.folder).shards)
        with disk_errors(self.folder, "writing training text"):
            make_folder(self.folder)
            with replacing(self.folder / f"text-{number:05d}.safetensors") as part:
                save_file(tensors, part)

    def read(self, shard: Path) -> list[Conversation]:
        """Read the conversations of one shard."""
        tensors = load_file(shard)
        lengths = tensors.pop("lengths").tolist()
        parts = [torch.split(tensors[part.name], lengths) for part in fields(Conversation)]
        return [Conversation(*talk) for talk in zip(*parts, strict=True)]


def state_size(target: Backend) -> int:
    """Numbers of a token's tapped hidden states."""
    embedded = target.embedding_rows(torch.zeros(1, dtype=torch.long, device=target.device))
    return embedded.numel() * len(target.taps)


@dataclass(frozen=True, slots=True)
class Script:
    """Given parts of a conversation, as token ids."""

    prompt: tuple[int, ...]
    """Prompt up to the first turn that the target writes."""
    follow_ups: tuple[tuple[int, ...], ...] = ()
    """Between two turns that the target writes."""
    asks: bool = False
    """Whether the target writes the user turns too, beginning with one; follow-ups are then repeated without end."""


def own_questions(tokenizer: Any, name: str) -> Script:
    """Script of conversations whose user turns the target writes too: what its chat template puts around the turns.

    Args:
        tokenizer: a `PlainTokenizer`.
        name: display name of the target, for the error.

    Raises:
        EngineError: there is no chat template, or it changes the text of turns.
    """
    if not tokenizer.chat_template:
        raise EngineError(
            f"{name} has no chat template, so no conversations can be made with it: give prompts with --prompts, "
            "or choose a target made for chat"
        )
    roles = ("user", "assistant", "user")
    messages = [{"role": role, "content": text} for role, text in zip(roles, _MARKS, strict=True)]
    # A template is a program of the model: it may raise anything.
    with errors_as(lambda error: f"the chat template of {name} cannot be used for distilling ({error})"):
        rest = render(tokenizer, messages)
        parts = []
        for mark in _MARKS:
            part, rest = rest.split(mark)
            parts.append(tuple(tokenizer.encode(part, add_special_tokens=False)))
    opening, answer, question = parts
    return Script(opening, (answer, question), asks=True)


def read_turns(file: Path) -> list[list[str]]:
    """Read the user's turns of conversations from a file, a conversation per line.

    Args:
        file: UTF-8; empty lines are skipped. In a file that ends in .jsonl each line is an object with the list
            `turns`; else the line is the only turn.

    Raises:
        EngineError: the file cannot be read, a line is malformed, or there is none.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")  # JSON may hold other line separators
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"{file} cannot be read ({error}): give a text file with one prompt per line") from None
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    check(numbered, f"{file} has no prompt: give one per line")
    return [_turns(file, *each) if file.suffix == ".jsonl" else [each[1]] for each in numbered]


def scripts_of(talks: Sequence[Sequence[str]], tokenizer: Any, name: str, longest: int) -> list[Script]:
    """The user's turns of conversations as token ids ready for a reply.

    Args:
        talks: turns of each conversation.
        tokenizer: tokenizer of the target.
        name: display name of the target, for errors.
        longest: in tokens; longer prompts are skipped, as they leave no room for a reply.

    Raises:
        EngineError: no prompt is short enough, or there are conversations and the target has no chat template.
    """
    several = any(len(turns) > 1 for turns in talks)
    answer, question = own_questions(tokenizer, name).follow_ups if several else ((), ())
    scripts = []
    for first, *others in talks:
        follow_ups = (question + tuple(tokenizer.encode(turn, add_special_tokens=False)) + answer for turn in others)
        scripts.append(Script(tuple(Prompt(first).encode(tokenizer)), tuple(follow_ups)))
    fitting = [script for script in scripts if len(script.prompt) <= longest]
    check(fitting, f"no prompt has at most {longest} tokens: give shorter ones")
    return fitting


def _turns(file: Path, number: int, line: str) -> list[str]:
    """User turns of a line."""
    try:
        turns = json.loads(line)["turns"]
    except (ValueError, KeyError, TypeError):
        turns = None
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise EngineError(f'{file}, line {number}: write an object such as {{"turns": ["Hello", "Tell me more"]}}')
    return turns


@dataclass(slots=True)
class _Writing:
    """A conversation that is being written."""

    given: Iterator[tuple[int, ...]]
    """Given parts to come."""
    settings: Iterator[Sampling]
    """Sampling of the turns to come."""
    turn: SequenceState = field(init=False)
    """The turn that is being written."""
    tokens: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)


class Rollout:
    """Endless source of conversations, each at most as long as the target's context.

    Args:
        target: with taps, and one slot per conversation written at once.
        ends: token ids that end a turn.
        scripts: given parts of conversations.
        dtype: dtype of the stored hidden states.
        seed: seed of the settings and the draws.
        settings: sampling settings of replies, drawn with equal probability.
        tokenizer: of the target, for settings with DRY.
    """

    def __init__(
        self,
        target: Backend,
        ends: frozenset[int],
        scripts: Sequence[Script],
        dtype: torch.dtype,
        seed: int,
        settings: Sequence[Sampling] = (Sampling(),),
        tokenizer: Any = None,
    ) -> None:
        self._target, self._ends, self._scripts = target, ends, scripts
        self._settings, self._tokenizer = settings, tokenizer
        self._waiting: list[int] = []
        self._random = torch.Generator().manual_seed(seed)
        slots, self._length = target.cache.slots, target.context
        self._penalties = Penalties(slots, self._length, target.device)
        self._features = torch.zeros(slots, self._length, state_size(target), dtype=dtype)
        self._log_total = torch.zeros(slots, self._length)
        self._rows = [self._begin(slot) for slot in range(slots)]

    def step(self) -> list[Conversation]:
        """Append one token to every conversation; returns the completed ones and starts others in their place."""
        slots = list(range(len(self._rows)))
        starts = [len(row.tokens) - 1 for row in self._rows]
        tokens = torch.tensor([row.tokens[-1] for row in self._rows], device=self._target.device)[:, None]
        logits, features = self._target.forward_with_states(tokens, slots, starts)
        assert features is not None
        scores = logits[:, 0].float()
        at = torch.tensor(starts)
        self._features[slots, at] = features[:, 0].to("cpu", self._features.dtype)
        self._log_total[slots, at] = scores.logsumexp(-1).cpu()
        complete = []
        for slot, chosen in enumerate(self._choose(scores).tolist()):
            if not self._continues(slot, chosen):
                complete.append(self._conversation(slot, len(self._rows[slot].tokens)))
                self._rows[slot] = self._begin(slot)
        return complete

    def unfinished(self) -> list[Conversation]:
        """Conversations that are not complete, up to the last token that the target has read."""
        begun = [slot for slot, row in enumerate(self._rows) if any(row.sampled[:-1])]
        return [self._conversation(slot, len(self._rows[slot].tokens) - 1) for slot in begun]

    def _begin(self, slot: int) -> _Writing:
        sampling = self._settings[int(torch.randint(len(self._settings), (), generator=self._random))]
        if not self._waiting:  # all once in random order before any repeats, since greedy replies would repeat too
            self._waiting = torch.randperm(len(self._scripts), generator=self._random).tolist()
        script = self._scripts[self._waiting.pop()]
        if script.asks:
            row = _Writing(cycle(script.follow_ups), cycle((_QUESTIONS, sampling)))
        else:
            row = _Writing(iter(script.follow_ups), repeat(sampling))
        self._give(slot, row, script.prompt)
        return row

    def _continues(self, slot: int, chosen: int) -> bool:
        """Append the chosen token, and the given tokens after the end of a turn; whether the conversation continues."""
        row = self._rows[slot]
        if len(row.tokens) == self._length:
            return False
        row.tokens.append(chosen)
        row.sampled.append(True)
        if chosen not in self._ends:
            return True
        given = next(row.given, ())
        if given[:1] == (chosen,):
            given = given[1:]
        if not given or len(row.tokens) + len(given) > self._length:
            # The target does not read the last token.
            self._features[slot, len(row.tokens) - 1] = self._log_total[slot, len(row.tokens) - 1] = 0
            return False
        self._give(slot, row, given)
        return True

    def _give(self, slot: int, row: _Writing, given: Sequence[int]) -> None:
        """Append given tokens before a turn, and let the target read all but the last."""
        unread = max(len(row.tokens) - 1, 0)
        row.tokens += given
        row.sampled += [False] * len(given)
        request = Request("text", prompt_ids=tuple(row.tokens), sampling=next(row.settings), drafter=NO_DRAFTER)
        row.turn = row_of(request, slot, self._tokenizer)
        row.tokens = row.turn.tokens
        if tokens := row.tokens[unread:-1]:
            fed = torch.tensor([tokens], device=self._target.device)
            features = self._target.prefill(fed, [slot], [unread])
            assert features is not None
            self._features[slot, unread : unread + len(tokens)] = features[0].to("cpu", self._features.dtype)

    def _choose(self, scores: Tensor) -> Tensor:
        """Sample one token per row, [B], from logits [B, V], with each row's settings."""
        turns, device = [row.turn for row in self._rows], scores.device
        if adjustment := self._penalties.of(turns):
            nothing = torch.zeros(len(turns), 0, dtype=torch.long, device=device)
            inside = torch.ones(len(turns), 1, 1, dtype=torch.bool, device=device)
            scores = adjustment.apply(scores[:, None], nothing, inside)[:, 0]
        rows = SamplingRows.of([turn.request.sampling for turn in turns], device)
        u = torch.rand(len(turns), dtype=torch.float64, generator=self._random).to(device)
        return draw(standardise(scores[:, None], rows)[:, 0], u)

    def _conversation(self, slot: int, length: int) -> Conversation:
        row = self._rows[slot]
        return Conversation(
            torch.tensor(row.tokens[:length], dtype=torch.int32),
            torch.tensor(row.sampled[:length]),
            self._features[slot, :length].clone(),
            self._log_total[slot, :length].clone(),
        )


LENGTH = 2048
"""Context of the reading target: longer texts are left out."""
_BEFORE = 64
"""Tokens of the prompt that are kept before a reply."""
_CHUNK = 128
_TOKENS = 100_000
"""Most tokens of text, the newest."""
_SHARD_TOKENS = 8192
_HELD_OUT, _MOST_HELD_OUT = 10, 20
"""One of `_HELD_OUT` conversations is held out, the newest first, and at most `_MOST_HELD_OUT`."""
TEMPERATURES = {"greedy": 0.0, "temperature 1": 1.0}
"""Temperatures of the evaluation, by name."""
_REPLY = 200
"""Tokens of a reply in the evaluation."""


def split(file: Path, folder: Path) -> tuple[Path, Path]:
    """Split conversations, one a line and the oldest first: those to learn from, and the newest, held out.

    Args:
        file: written by the app, as `specchat evaluate` reads it.
        folder: gets the two files.

    Raises:
        EngineError: there are fewer than two conversations, or the disk is full.
    """
    lines = [line for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    check(len(lines) >= 2, "there are fewer than two chats to learn from: chat with this model first")
    held = min(max(len(lines) // _HELD_OUT, 1), _MOST_HELD_OUT)
    for name, part in (("learn.jsonl", lines[:-held]), ("held.jsonl", lines[-held:])):
        with disk_errors(folder, "writing training text"), replacing(folder / name) as path:
            path.touch(mode=0o600)
            path.write_text("\n".join(part), encoding="utf-8")
    return folder / "learn.jsonl", folder / "held.jsonl"


def read_replies(
    file: Path, target: Backend, tokenizer: object, dtype: torch.dtype, corpus: Corpus, progress: Progress
) -> None:
    """Let the target read the replies of a file, the newest first, instead of the text that the folder holds.

    Args:
        file: conversations, the oldest first.
        target: with taps, and one slot.
        tokenizer: the target's.
        dtype: dtype of the stored hidden states.
        corpus: receives the text.
        progress: called with the stage text.

    Raises:
        EngineError: the disk is full.
    """
    for shard in Corpus(corpus.folder).shards:  # of an earlier call: a chat of it may have been deleted since
        shard.unlink()
    texts = [text for text in texts_of(read_entries([file]), tokenizer)[0] if text.reply]
    texts = [text for text in texts if len(text.prompt) + len(text.reply) <= target.context]
    least = sum(min(len(text.prompt), _BEFORE) + len(text.reply) for text in texts)
    require_space(corpus.folder, min(least, _TOKENS) * dtype.itemsize * state_size(target), "training text")
    read, held = 0, list[Conversation]()
    for number, text in enumerate(reversed(texts), 1):
        held.append(_read(target, text, dtype))
        read += len(held[-1].tokens)
        progress("text", f"read {number} of {len(texts)} replies, {read:,} tokens", number / len(texts))
        enough = number == len(texts) or read >= _TOKENS
        if enough or sum(len(talk.tokens) for talk in held) >= _SHARD_TOKENS:
            corpus.add(held)
            held = []
        if enough:
            break


@torch.inference_mode()
def _read(target: Backend, text: Text, dtype: torch.dtype) -> Conversation:
    """One reply with the target's states, and the end of its prompt. The target does not read the last token."""
    tokens = torch.tensor([*text.prompt, *text.reply], dtype=torch.int32)
    log_total, states = torch.zeros(len(tokens)), list[torch.Tensor]()
    place = len(text.prompt) - 1
    for logits, tapped in passes(target, text, _CHUNK):
        assert tapped is not None
        states.append(tapped[0].to("cpu", dtype, copy=True))
        if logits is not None:
            log_total[place : place + len(logits)] = logits.float().logsumexp(-1).cpu()
            place += len(logits)
    features = torch.cat([*states, torch.zeros_like(states[-1][:1])])
    sampled = torch.arange(len(tokens)) >= len(text.prompt)
    kept = slice(max(len(text.prompt) - _BEFORE, 0), None)
    return Conversation(tokens[kept], sampled[kept], features[kept].clone(), log_total[kept])


def acceptance(options: DistillOptions, draft: Path, held: Path) -> dict[str, HeadAcceptance]:
    """Acceptance of a head on held-out replies, by `specchat evaluate`: greedy, and at temperature 1.

    Args:
        options: options of the distillation.
        draft: folder of the head.
        held: conversations.
    """
    given: dict[str, Any] = {name: getattr(options, name) for name in ("models", "target", "device", "dtype")}
    given |= {"files": (held,), "draft": str(draft), "drafters": ("head",), "gammas": (DEFAULT_GAMMA,)}
    reached = {}
    for name, temperature in TEMPERATURES.items():
        evaluation = evaluate(EvaluateOptions(**given, max_tokens=_REPLY, temperature=temperature), lambda _: None)
        figures = evaluation.figures()[0]
        reached[name] = HeadAcceptance(figures.alpha, figures.by_position, figures.tau)
    return reached
