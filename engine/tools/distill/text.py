"""Text that a target writes for the training of its drafts, and what is counted in it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.engine.errors import EngineError
from specchat.engine.models.disk import require_space
from specchat.engine.models.load import LoadedModel
from specchat.engine.progress import Progress
from specchat.engine.tools.distill.corpus import Conversation, Corpus
from specchat.engine.tools.distill.options import DistillOptions
from specchat.engine.tools.distill.prompts import read_prompts
from specchat.engine.tools.distill.rollout import Rollout
from specchat.engine.tools.distill.standing import Standing
from specchat.engine.tools.distill.turns import Turns
from specchat.engine.tools.prompts import Prompt
from specchat.engine.worker.obtain import Model, make_runner

_TEXT_SHARE = 0.4
"""Fraction of the time for writing text."""
_VOCABULARY = 4, 4096
"""Size of a draft vocabulary: V divided by the first, but at least the second. Further tokens are rare but would be
read from memory in every step: a quarter of 49,152 tokens covers 93 % of greedy replies, an eighth 88 %."""
_LEAST_TOKENS = 20_000
"""Fewest tokens of text: what is trained on less does not generalise to other prompts."""
_SHARD_TOKENS = 8192
_ROWS = {"cpu": 96, "cuda": 512}
"""Conversations of `_LENGTH` tokens written at once, per device type."""
_LENGTH, _LONG = 384, 768
"""Tokens per conversation; the second where several user turns are given, so that most of them are answered."""
_KNOWN = 2
"""How many times more a token counts that the head could draft before: a text shorter than those that its vocabulary
was chosen from says little about rare tokens."""


def write_text(
    options: DistillOptions,
    model: Model,
    taps: Sequence[int],
    dtype: torch.dtype,
    corpus: Corpus,
    standing: Standing,
    progress: Progress,
) -> None:
    """Let the target write text until its share of the time is used up.

    Args:
        options: of the command.
        model: the target.
        taps: depths of the hidden states to keep beside the text, the last one last.
        dtype: that they are kept in.
        corpus: what is written is added to it.
        standing: counts the time.
        progress: called with the stage text.

    Raises:
        EngineError: the target cannot write conversations, or the disk is full.
    """
    budget = options.minutes * 60 * _TEXT_SHARE
    if standing.text_seconds >= budget or not _is_written(options):
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
    before, began, done = standing.text_seconds, time.perf_counter(), corpus.tokens
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
            standing.spend(spent)
            done, written = done + held, []


def draft_vocabulary(
    options: DistillOptions, model: LoadedModel, corpus: Corpus, before: Tensor | None = None
) -> tuple[int, Tensor]:
    """Number of tokens in the text, and the most frequent tokens in it, [V'], ascending by id.

    Tokens that end a reply are always among them: a short text may have few of them, and without one a draft never
    gets to the end.

    Args:
        options: of the command.
        model: the target.
        corpus: the text.
        before: int64: the vocabulary of the draft that is trained further.

    Raises:
        EngineError: the text is too short.
    """
    size = model.vocab_size
    counts = torch.zeros(size, dtype=torch.long)
    total = 0
    for talk in corpus.talks():
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
    """Whether there is text to be written: not where that of other folders is given, and no prompts."""
    return not options.text or options.prompts is not None


def unseen(prompts: Sequence[Prompt], corpus: Corpus, model: LoadedModel) -> list[Prompt]:
    """The prompts that are not in the text."""
    text = "\n".join(str(model.tokenizer.decode(talk.tokens)) for talk in corpus.talks())
    return [prompt for prompt in prompts if prompt.text not in text]
