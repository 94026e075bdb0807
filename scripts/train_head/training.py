"""Text and updates, alternating, for a given time, with a log and finished heads."""

from __future__ import annotations

import copy
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from scripts.train_head.check import check_wave
from scripts.train_head.graphs import synchronize
from scripts.train_head.learner import LENGTH, ROWS, Learner
from scripts.train_head.parts import parts_of
from scripts.train_head.text import Text
from scripts.train_head.writer import Writer
from specchat.engine.drafters.head.folder import read_head, save_head
from specchat.engine.models.load import load_model
from specchat.engine.progress import ignore_progress
from specchat.engine.tools.distill.eagle import can_be_clustered, cluster

_WAVES = 2
"""Waves in memory that updates draw from."""
_JUDGED = 16
"""Batches of a new wave that the head is judged on before it is trained on it; as many are for clusters."""
_AHEAD = 50
"""Updates after which the GPU is waited for: the clock must not run ahead of it by more."""
_SAVED = 5
"""Waves after which the heads are saved."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to train, on what, and for how long."""

    target: Path
    head: Path
    out: Path
    """Folder for `last` and `average`, the heads with the last weights and their moving average, for `used.pt`, [V]
    int64, how often the target chose each token, and for `log.jsonl`, a line per wave."""
    prompts: Path
    minutes: float
    """Loading included."""
    rows: int
    """Conversations at once."""
    length: int
    """Columns of a wave."""
    passes: float
    """How often a token is trained on."""


class Training:
    """The training of one head.

    Args:
        options: as above.

    Raises:
        EngineError: target, head or prompts cannot be used.
    """

    def __init__(self, options: Options) -> None:
        self._options, self._began = options, time.perf_counter()
        self._ends = self._began + options.minutes * 60
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans for each shape
        model = load_model(options.target, device, dtype, ignore_progress)
        target: Any = model.model.requires_grad_(False)
        self._target = target
        self._card, self._given, self._vocabulary = read_head(options.head, model)
        torch.manual_seed(self._card.steps)  # other text than in the training before
        parts = parts_of(options.prompts, model, device)
        self._writer = Writer(model, self._card.shape.taps, parts, options.rows, options.length)
        width = len(self._card.shape.taps) * target.config.hidden_size
        self._store = Text.empty(_WAVES * options.rows, options.length, width, dtype, device)
        self._network = copy.deepcopy(self._given).float().to(device).requires_grad_(True)
        self._learner = Learner(self._network, target, self._vocabulary.to(device), self._store)
        self._used = torch.zeros(model.vocab_size, dtype=torch.long, device=device)
        self._waves = self._written = 0
        options.out.mkdir(parents=True, exist_ok=True)
        self._starts = time.perf_counter()

    def run(self) -> None:
        """Train until the time is over.

        Raises:
            EngineError: the first wave is not the target's text (`check_wave`), or a head cannot be saved.
        """
        while time.perf_counter() < self._ends:
            self._turn()
            if self._waves % _SAVED == 1:
                self._save()
        self._save(finished=True)

    def _turn(self) -> None:
        """Write a wave, judge the head on it, and train on it and the one before."""
        turned, learner, rows = time.perf_counter(), self._learner, self._options.rows
        text = self._writer.wave()
        if not self._waves:
            check_wave(text, self._target)
        first = self._waves % _WAVES * rows
        self._store.copy(text, first)
        self._waves, self._written = self._waves + 1, self._written + text.tokens.numel()
        self._used += torch.bincount(text.tokens[text.counted], minlength=len(self._used))
        synchronize()
        wrote = time.perf_counter()
        learner.filled.fill_(min(self._waves, _WAVES) * rows)
        rates, firsts = learner.judge(torch.arange(first, first + rows, device=text.tokens.device), _JUDGED)
        self._learn(text.tokens.numel())
        line = {
            "s": round(time.perf_counter() - self._began, 1),
            "tokens": self._written,
            "updates": learner.updates,
            "write_s": round(wrote - turned, 2),
            "wave_s": round(time.perf_counter() - turned, 2),
            "overlap": [round(each, 4) for each in rates],
            "agreement": [round(each, 4) for each in firsts],
            "counted": round(text.counted.float().mean().item(), 3),
            "rate": learner.rate.item(),
        }
        print(json.dumps(line), flush=True)
        with (self._options.out / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _learn(self, tokens: int) -> None:
        """The updates for a number of new tokens, while there is time."""
        options, learner = self._options, self._learner
        for _ in range(int(options.passes * tokens / (ROWS * min(LENGTH, options.length)))):
            done = (time.perf_counter() - self._starts) / (self._ends - self._starts)
            learner.update(done)
            if learner.updates % _AHEAD == 0:
                synchronize()
            if done > 1:
                break

    def _save(self, *, finished: bool = False) -> None:
        """Save both heads; finished ones get clusters, if their vocabulary is large enough."""
        card, learner, out = self._card, self._learner, self._options.out
        clustered = finished and can_be_clustered(len(self._vocabulary))
        outputs = learner.outputs(_JUDGED) if clustered else None
        card = replace(card, tokens=card.tokens + self._written, steps=card.steps + learner.updates)
        averaged = copy.deepcopy(self._given).float()
        averaged.load_state_dict({name: weight.cpu() for name, weight in learner.average.items()})
        for name, head in (("last", self._network), ("average", averaged)):
            vocabulary = self._vocabulary
            if outputs is not None:
                head, order = cluster(head, learner.scores, outputs)
                vocabulary = vocabulary[order.to(vocabulary.device)]
            save_head(out / name, head, vocabulary, replace(card, shape=head.shape))
        torch.save(self._used.cpu(), out / "used.pt")
