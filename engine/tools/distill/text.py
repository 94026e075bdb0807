"""Training text: prompts given by the user, text written by the target, and the draft vocabulary counted in it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specchat.engine.errors import EngineError
from specchat.engine.models.disk import require_space
from specchat.engine.models.load import LoadedModel
from specchat.engine.progress import Progress
from specchat.engine.request import Message, Request
from specchat.engine.sequence.prompt import encode
from specchat.engine.tools.distill.corpus import Conversation, Corpus
from specchat.engine.tools.distill.options import DistillOptions
from specchat.engine.tools.distill.rollout import Rollout, Script, Turns
from specchat.engine.tools.distill.work_folder import WorkFolder
from specchat.engine.tools.prompts import Prompt
from specchat.engine.worker.obtain import Model, make_runner

_TEXT_SHARE = 0.4
"""Fraction of the time for writing text."""
_VOCABULARY = 4, 4096
"""Size of a draft vocabulary: V divided by the first, but at least the second. Further tokens are rare but would be
read from memory in every step: a quarter of 49,152 tokens covers 93 % of greedy replies, an eighth 88 %."""
_LEAST_TOKENS = 20_000
"""Fewest tokens of text: drafts trained on less do not generalise to other prompts."""
_SHARD_TOKENS = 8192
_ROWS = {"cpu": 96, "cuda": 512}
"""Conversations of `_LENGTH` tokens written at once, per device type."""
_LENGTH, _LONG = 384, 768
"""Tokens per conversation; the second for several given user turns, so that most of them are answered."""
_KNOWN = 2
"""Additional count of each token of the starting draft's vocabulary: a short text says little about rare tokens."""


def read_prompts(file: Path, tokenizer: Any, name: str, longest: int) -> list[Script]:
    """Read prompts from a file, one per line, as token ids ready for a reply.

    Args:
        file: UTF-8; empty lines are skipped. In a file that ends in .jsonl each line is an object whose `turns` are the
            user's turns of one conversation; else the line is the prompt.
        tokenizer: tokenizer of the target.
        name: display name of the target, for errors.
        longest: in tokens; longer prompts are skipped, as they leave no room for a reply.

    Raises:
        EngineError: the file cannot be read, a line is malformed, no prompt is short enough, or there are
            conversations and the target has no chat template.
    """
    try:
        lines = file.read_text(encoding="utf-8").split("\n")  # JSON may hold other line separators
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"{file} cannot be read ({error}): give a text file with one prompt per line") from None
    conversations = (
        list(_conversations(file, lines)) if file.suffix == ".jsonl" else [[line] for line in lines if line.strip()]
    )
    between = Turns.of(tokenizer, name) if any(len(turns) > 1 for turns in conversations) else None
    scripts = [_script(turns, between, tokenizer) for turns in conversations]
    fitting = [script for script in scripts if len(script.prompt) <= longest]
    if not fitting:
        raise EngineError(f"{file} has no prompt of at most {longest} tokens: give one prompt per line")
    return fitting


def _conversations(file: Path, lines: Sequence[str]) -> Iterator[list[str]]:
    """User turns of each line that is not empty."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            turns = json.loads(line)["turns"]
        except (ValueError, KeyError, TypeError):
            turns = None
        if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
            raise EngineError(f'{file}, line {number}: write an object such as {{"turns": ["Hello", "Tell me more"]}}')
        yield turns


def _script(turns: Sequence[str], between: Turns | None, tokenizer: Any) -> Script:
    first, *others = turns
    prompt = encode(Request("", messages=(Message("user", first),)), tokenizer)
    if between is None:
        return Script(tuple(prompt))
    follow_ups = (tuple(tokenizer.encode(turn, add_special_tokens=False)) for turn in others)
    return Script(tuple(prompt), tuple(between.question + turn + between.answer for turn in follow_ups))


def write_text(
    options: DistillOptions,
    model: Model,
    taps: Sequence[int],
    dtype: torch.dtype,
    corpus: Corpus,
    work: WorkFolder,
    progress: Progress,
) -> None:
    """Let the target write text until its share of the time is used up.

    Args:
        options: options of the command.
        model: the target.
        taps: depths of the hidden states to store, the last one last.
        dtype: dtype of the stored hidden states.
        corpus: receives the text.
        work: counts the time.
        progress: called with the stage text.

    Raises:
        EngineError: the target cannot write conversations, or the disk is full.
    """
    budget = options.minutes * 60 * _TEXT_SHARE
    if work.text_seconds >= budget or not _is_written(options):
        return
    length = min(_LENGTH, model.context)
    if options.prompts is None:
        turns, prompts = Turns.of(model.tokenizer, model.name), []
    else:
        turns, prompts = None, read_prompts(options.prompts, model.tokenizer, model.name, length // 2)
        if any(script.follow_ups for script in prompts):
            length = min(_LONG, model.context)
    target = make_runner(model, _ROWS[model.device.type] * _LENGTH // max(length, _LENGTH), length, 0, taps)
    size = dtype.itemsize * target.embedding_rows(torch.zeros(1, dtype=torch.long, device=target.device)).numel()
    require_space(corpus.folder, 4 * _SHARD_TOKENS * size * len(taps), "training text")
    rollout = Rollout(target, turns, model.eos_ids, prompts, dtype, seed=len(corpus.shards))
    before, began, done = work.text_seconds, time.perf_counter(), corpus.tokens
    written: list[Conversation] = []
    spent = before
    while spent < budget:
        written += rollout.step()
        spent = before + time.perf_counter() - began
        if spent >= budget:
            written += rollout.unfinished()
        held = sum(len(talk.tokens) for talk in written)
        progress("text", f"{model.name} has written {done + held:,} tokens", min(spent / budget, 1.0))
        if held >= _SHARD_TOKENS or (held and spent >= budget):
            corpus.add(written)
            work.spend(spent)
            done, written = done + held, []


def draft_vocabulary(
    options: DistillOptions, model: LoadedModel, corpus: Corpus, before: Tensor | None = None
) -> tuple[int, Tensor]:
    """Number of tokens in the text, and the most frequent tokens in it, [V'], ascending by id.

    Tokens that end a reply are always included: a short text may have few of them.

    Args:
        options: options of the command.
        model: the target.
        corpus: the text.
        before: [V'], int64: vocabulary of the starting draft.

    Raises:
        EngineError: the text is too short.
    """
    size = model.vocab_size
    counts = torch.zeros(size, dtype=torch.long)
    total = 0
    for talk in corpus.conversations():
        counts += torch.bincount(talk.tokens[talk.sampled].long(), minlength=size)
        total += len(talk.tokens)
    if total < _LEAST_TOKENS and not _is_written(options):
        raise EngineError(
            f"the text given has {total} tokens and a draft head needs {_LEAST_TOKENS}: name more folders with --text"
        )
    if total < _LEAST_TOKENS:
        needed = math.ceil(options.minutes * _LEAST_TOKENS / max(total, 1) * 1.2)
        raise EngineError(
            f"{model.name} has written {total} tokens in the time given and a draft head needs {_LEAST_TOKENS}: "
            f"give --minutes {needed} or more"
        )
    share, least = _VOCABULARY
    most = min(max(size // share, least), size)
    if before is not None:
        counts[before] += _KNOWN
    counts[[token for token in model.eos_ids if token < size]] = total + _KNOWN + 1
    return total, counts.argsort(descending=True, stable=True)[:most].sort().values


def _is_written(options: DistillOptions) -> bool:
    """Whether text is written: not if folders with text are given, and no prompts."""
    return not options.text or options.prompts is not None


def unseen(prompts: Sequence[Prompt], corpus: Corpus, model: LoadedModel) -> list[Prompt]:
    """The prompts that are not in the text."""
    text = "\n".join(str(model.tokenizer.decode(talk.tokens)) for talk in corpus.conversations())
    return [prompt for prompt in prompts if prompt.text not in text]
