"""Training text from replies that the target has written before: it reads them once; nothing is generated.

This is online speculative decoding at the pace of its user (Liu et al. 2023, arXiv 2310.07177, section 3): the draft is
distilled on the queries that its target really answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from specchat.engine.decoding.backend import Backend
from specchat.engine.drafters.head.folder import HeadAcceptance
from specchat.engine.errors import check
from specchat.engine.files import replacing
from specchat.engine.models.disk import disk_errors, require_space
from specchat.engine.progress import Progress
from specchat.engine.request import DEFAULT_GAMMA
from specchat.engine.tools.data_sets import read_entries
from specchat.engine.tools.distill.text import Conversation, Corpus, state_size
from specchat.engine.tools.distill.work_folder import DistillOptions
from specchat.engine.tools.evaluate.drafters import evaluate
from specchat.engine.tools.evaluate.rounds import passes
from specchat.engine.tools.evaluate.texts import EvaluateOptions, Text, texts_of

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
