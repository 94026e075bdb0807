"""Many requests through one engine, some of them bad: each must end exactly once, greedy ones with the right text.

Models are tiny, of random weights, in float32. Prompts, lengths, drafters, γ, cancels and adjustments are drawn from a
seed; one request in twenty is bad. Greedy replies are compared with decoding token by token without a cache. A reply
that differs where the reference's two best logits are closer than `TIE` is counted apart: padding changes last bits.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch

from specchat.engine import (
    Engine,
    EngineConfig,
    EngineError,
    Event,
    Finished,
    FinishReason,
    Outbox,
    Request,
    Round,
    Sampling,
)
from specchat.engine.models.load import LoadedModel
from specchat.engine.worker.assembly import put_together
from tests.engine.tiny import EOS, VOCABULARY, tiny_head, tiny_model

DRAFTERS = ("auto", "none", "ngram", "model", "head", "combined")
CONTEXT = 192
PROMPTS = 120
LONGEST = 40
"""Tokens of a reply."""
OUTSTANDING = 24
"""Requests that run or wait at once, for 8 slots."""
BAD = 1 / 20
TIE = 1e-3
PATIENCE_S = 120


@dataclass(slots=True)
class Expected:
    """What a request that runs is to give."""

    prompt: int
    greedy: bool
    max_tokens: int
    tokens: list[int] = field(default_factory=list)
    cancel_at: int | None = None
    """Round after which it is cancelled."""
    adjust_at: int | None = None
    bad: str = ""


@dataclass(slots=True)
class Tally:
    """What came of all of them."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """What must not be, a line each."""


class Reference:
    """Greedy replies, token by token and without a cache, to prompts of random bytes."""

    def __init__(self, model: LoadedModel, count: int, seed: int) -> None:
        chance = random.Random(seed)
        self.prompts: list[tuple[int, ...]] = []
        for number in range(count):
            words = [tuple(chance.randrange(256) for _ in range(chance.randint(1, 9))) for _ in range(3)]
            tokens = sum((chance.choice(words) for _ in range(chance.randint(1, 12))), ())
            if number % 3 == 2:  # a conversation goes on
                tokens = (*self.prompts[-1], *tokens)
            self.prompts.append(tokens[: CONTEXT - LONGEST - 2])
        decoded = [self._decode(model, prompt) for prompt in self.prompts]
        self.replies = [tokens for tokens, _ in decoded]
        self.gaps = [gaps for _, gaps in decoded]
        """How far each token's logit is above the next best."""

    @staticmethod
    @torch.inference_mode()
    def _decode(model: LoadedModel, prompt: tuple[int, ...]) -> tuple[list[int], list[float]]:
        tokens, gaps = list(prompt), []
        while len(tokens) < len(prompt) + LONGEST and EOS not in tokens[len(prompt) :]:
            best = model.model(torch.tensor([tokens]), use_cache=False).logits[0, -1].topk(2)
            tokens.append(int(best.indices[0]))
            gaps.append(float(best.values[0] - best.values[1]))
        return tokens[len(prompt) :], gaps


class Stress:
    """One run.

    Args:
        requests: how many.
        seed: of everything that is drawn.
    """

    def __init__(self, requests: int, seed: int) -> None:
        self._requests = requests
        self._chance = random.Random(seed)
        self._target = tiny_model()
        self._reference = Reference(tiny_model(), PROMPTS, seed)
        self._outbox = Outbox()
        self._open: dict[str, Expected] = {}
        self._ended: set[str] = set()
        self._tally = Tally()

    def run(self) -> Tally:
        """Submit and collect."""
        draft, head = tiny_model(seed=1, layers=1), tiny_head(self._target)
        config = EngineConfig("tiny", Path(), slots=8, context=CONTEXT, prefill_chunk=32)
        self._engine = Engine(config, lambda config, _: put_together(config, self._target, draft, head))
        self._engine.start()
        self._engine.wait_ready(PATIENCE_S)
        submitted = 0
        while submitted < self._requests or self._open:
            while submitted < self._requests and len(self._open) < OUTSTANDING:
                self._submit(f"r{submitted}")
                submitted += 1
            event = self._outbox.get(PATIENCE_S) if self._open else None
            if event is not None:
                self._take(event)
            elif self._open:
                self._tally.faults.append(f"nothing for {PATIENCE_S} s, and {len(self._open)} requests are open")
                break
        self._engine.close()
        for event in self._outbox.drain():
            self._take(event)
        return self._tally

    def _submit(self, name: str) -> None:
        chance = self._chance
        if chance.random() < BAD:
            self._submit_bad(name)
        else:
            self._submit_good(name)

    def _submit_good(self, name: str) -> None:
        chance = self._chance
        prompt, greedy = chance.randrange(PROMPTS), chance.random() < 0.8
        expected = Expected(prompt, greedy, chance.randint(1, LONGEST))
        if chance.random() < 0.1:
            expected.cancel_at = chance.randrange(6)
        elif chance.random() < 0.15:
            expected.adjust_at = chance.randrange(6)
        sampling = Sampling() if greedy else Sampling(temperature=1.0, top_p=chance.choice((1.0, 0.9)), seed=1)
        request = Request(
            name,
            prompt_ids=self._reference.prompts[prompt],
            sampling=sampling,
            drafter=chance.choice(DRAFTERS),
            gamma=chance.choice((None, None, 0, 1, 2, 4, 8, 16)),
            max_tokens=expected.max_tokens,
            detail=chance.choice((0, 0, 0, 3)),
        )
        self._open[name] = expected
        self._engine.submit(request, self._outbox)
        self._tally.counts[f"submitted {request.drafter}"] += 1
        if expected.cancel_at == 0:
            self._engine.cancel(name)

    def _submit_bad(self, name: str) -> None:
        """Something that cannot be served: it is refused at once, or ends with a sentence."""
        bad = {
            "half a surrogate pair": Request(name, prompt="a\udcff"),
            "a negative id": Request(name, prompt_ids=(1, -1)),
            "an id beyond the vocabulary": Request(name, prompt_ids=(1, VOCABULARY)),
            "an id that is taken": Request(name, prompt_ids=(1,)),
            "a prompt that is too long": Request(name, prompt_ids=(1,) * CONTEXT),
            "an unknown drafter": Request(name, prompt_ids=(1,), drafter="oracle"),
            "an empty prompt": Request(name, prompt=""),
        }
        kind = self._chance.choice(list(bad))
        self._tally.counts[f"bad: {kind}"] += 1
        if kind == "an id that is taken":
            self._submit_twice(name, bad[kind])
            return
        self._open[name] = Expected(0, False, 0, bad=kind)
        try:
            self._engine.submit(bad[kind], self._outbox)
        except EngineError as error:
            del self._open[name]
            self._sentence(name, str(error))

    def _submit_twice(self, name: str, second: Request) -> None:
        """A good request and, before it can end, another one of its id."""
        self._engine.pause()
        self._submit_good(name)
        if self._open[name].cancel_at != 0:  # else the id is free again
            try:
                self._engine.submit(second, Outbox())
            except EngineError as error:
                self._sentence(name, str(error))
            else:
                self._tally.faults.append(f"{name}: a second request of one id was taken")
        self._engine.resume()

    def _take(self, event: Event) -> None:
        name = getattr(event, "request_id", None)
        if name in self._ended:
            self._tally.faults.append(f"{name}: {type(event).__name__} after the end")
        if name not in self._open:
            if not isinstance(name, str) and type(event).__name__ in ("Died", "Notice"):
                self._tally.faults.append(str(event))
            return
        expected = self._open[name]
        if isinstance(event, Round):
            expected.tokens += event.emitted
            self._steer(name, expected, event.number)
        elif isinstance(event, Finished):
            del self._open[name]
            self._ended.add(name)
            self._judge(name, expected, event)

    def _steer(self, name: str, expected: Expected, number: int) -> None:
        if expected.cancel_at is not None and number + 1 >= expected.cancel_at:
            self._engine.cancel(name)
        if expected.adjust_at is not None and number >= expected.adjust_at:
            expected.adjust_at = None
            self._tally.counts["adjusted"] += 1
            gamma = self._chance.choice((None, 0, 1, 3, 7))
            self._engine.adjust(name, self._chance.choice(DRAFTERS), gamma)

    def _judge(self, name: str, expected: Expected, end: Finished) -> None:
        self._tally.counts[f"ended: {end.reason}"] += 1
        if expected.bad or end.reason is FinishReason.ERROR:
            if not expected.bad:
                self._tally.faults.append(f"{name}: {end.message}")
            self._sentence(name, end.message)
            return
        if not expected.greedy:
            return
        right = self._reference.replies[expected.prompt][: expected.max_tokens]
        whole = end.reason is not FinishReason.CANCELLED
        if expected.tokens == (right if whole else right[: len(expected.tokens)]):
            self._tally.counts["greedy, as the reference"] += 1
            return
        at = next((i for i, (a, b) in enumerate(zip(expected.tokens, right, strict=False)) if a != b), None)
        if at is not None and self._reference.gaps[expected.prompt][at] < TIE:
            self._tally.counts["greedy, other at a tie"] += 1
        else:
            self._tally.faults.append(f"{name}: token {at} of the reply is not the reference's")

    def _sentence(self, name: str, message: str) -> None:
        if not message or "\n" in message or "internal error" in message:
            self._tally.faults.append(f"{name}: no sentence for people: {message!r}")
