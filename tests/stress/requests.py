"""Many requests through one engine, some of them bad: each must end exactly once, greedy ones with the right text.

Models are tiny, of random weights, in float32. Prompts, lengths, drafters, γ, cancels and adjustments are drawn from a
seed; one request in twenty is bad. Greedy replies are compared with decoding token by token without a cache, up to
where the reference's two best logits are closer than `TIE`: padding changes last bits.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch

from specchat.engine import Engine, EngineConfig, EngineError, Outbox, Round
from specchat.engine.events import Event, Finished, FinishReason
from specchat.engine.models.load import LoadedModel
from specchat.engine.request import Request
from specchat.engine.settings import Sampling
from specchat.engine.worker.assembly import assemble_loaded
from tests.engine.tiny import EOS, VOCABULARY, tiny_head, tiny_model

DRAFTERS = ("auto", "none", "ngram", "model", "head", "combined")
CONTEXT = 192
PROMPTS = 60
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

    reference: list[int] | None = None
    """The tokens of a greedy reply."""
    tokens: list[int] = field(default_factory=list)
    cancel_at: int | None = None
    """Round after which it is cancelled."""
    adjust_at: int | None = None
    bad: bool = False


def random_prompts(chance: random.Random) -> list[tuple[int, ...]]:
    """Prompts of random bytes that repeat themselves; every third continues the one before."""
    prompts: list[tuple[int, ...]] = []
    for number in range(PROMPTS):
        words = [tuple(chance.randrange(256) for _ in range(chance.randint(1, 9))) for _ in range(3)]
        tokens = sum((chance.choice(words) for _ in range(chance.randint(1, 12))), ())
        prompts.append(((*prompts[-1], *tokens) if number % 3 == 2 else tokens)[: CONTEXT - LONGEST - 2])
    return prompts


@torch.inference_mode()
def decoded(model: LoadedModel, prompt: tuple[int, ...]) -> list[int]:
    """The greedy reply, token by token and without a cache, up to a tie."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + LONGEST and EOS not in tokens[len(prompt) :]:
        best = model.model(torch.tensor([tokens]), use_cache=False).logits[0, -1].topk(2)
        if best.values[0] - best.values[1] < TIE:
            break
        tokens.append(int(best.indices[0]))
    return tokens[len(prompt) :]


class Stress:
    """One run.

    Args:
        requests: how many.
        seed: of everything that is drawn.
    """

    def __init__(self, requests: int, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        """What must not be, a line each."""
        self._requests = requests
        self._chance = random.Random(seed)
        self._prompts = random_prompts(self._chance)
        plain = tiny_model()
        self._replies = [decoded(plain, prompt) for prompt in self._prompts]
        self._outbox = Outbox()
        self._open: dict[str, Expected] = {}
        self._ended: set[str] = set()

    def run(self) -> None:
        """Submit and collect."""
        target = tiny_model()
        draft, head = tiny_model(seed=1, layers=1), tiny_head(target)
        config = EngineConfig("tiny", Path(), slots=8, context=CONTEXT, prefill_chunk=32)
        self._engine = Engine(config, lambda config, _: assemble_loaded(config, target, draft, head=head))
        self._engine.start()
        self._engine.wait_ready(PATIENCE_S)
        submitted = 0
        while submitted < self._requests or self._open:
            while submitted < self._requests and len(self._open) < OUTSTANDING:
                name = f"r{submitted}"
                self._submit_bad(name) if self._chance.random() < BAD else self._submit_good(name)
                submitted += 1
            event = self._outbox.get(PATIENCE_S) if self._open else None
            if event is not None:
                self._take(event)
            elif self._open:
                self.faults.append(f"nothing for {PATIENCE_S} s, and {len(self._open)} requests are open")
                break
        self._engine.close()
        for event in self._outbox.drain():
            self._take(event)

    def _submit_good(self, name: str) -> None:
        chance = self._chance
        number, greedy, length = chance.randrange(PROMPTS), chance.random() < 0.8, chance.randint(1, LONGEST)
        expected = Expected(self._replies[number][:length] if greedy else None)
        if chance.random() < 0.1:
            expected.cancel_at = chance.randrange(6)
        elif chance.random() < 0.15:
            expected.adjust_at = chance.randrange(6)
        request = Request(
            name,
            prompt_ids=self._prompts[number],
            sampling=Sampling()
            if greedy
            else Sampling(temperature=1.0, top_p=chance.choice((1.0, 0.9)), seed=chance.choice((1, None))),
            drafter=chance.choice(DRAFTERS),
            gamma=chance.choice((None, None, 0, 1, 2, 4, 8, 16)),
            max_tokens=length,
            detail=chance.choice((0, 0, 0, 3)),
        )
        self._open[name] = expected
        self._engine.submit(request, self._outbox)
        self.counts["submitted"] += 1
        if expected.cancel_at == 0:
            self._engine.cancel(name)

    def _submit_bad(self, name: str) -> None:
        """Something that cannot be served: it is refused at once, or ends with a sentence."""
        self.counts["bad"] += 1
        bad = (
            Request(name, prompt="a\udcff"), Request(name, prompt_ids=(1, -1)),
            Request(name, prompt_ids=(1, VOCABULARY)), Request(name, prompt_ids=(1,) * CONTEXT),
            Request(name, prompt_ids=(1,), drafter="oracle"), Request(name, prompt=""),
        )  # fmt: skip
        self._open[name] = Expected(bad=True)
        try:
            self._engine.submit(self._chance.choice(bad), self._outbox)
        except EngineError as error:
            del self._open[name]
            self._check_sentence(name, str(error))

    def _take(self, event: Event) -> None:
        name = getattr(event, "request_id", None)
        if name in self._ended:
            self.faults.append(f"{name}: {type(event).__name__} after the end")
        if name not in self._open:
            if not isinstance(name, str) and type(event).__name__ in ("Died", "Notice"):
                self.faults.append(str(event))
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
            self._engine.adjust(name, self._chance.choice(DRAFTERS), self._chance.choice((None, 0, 1, 3, 7)))

    def _judge(self, name: str, expected: Expected, end: Finished) -> None:
        self.counts["ended"] += 1
        if end.reason is FinishReason.ERROR:
            self._check_sentence(name, end.message)
        if expected.bad is not (end.reason is FinishReason.ERROR):
            self.faults.append(f"{name}: {end.reason} {end.message}")
        if expected.reference is None:
            return
        compared = expected.tokens[: len(expected.reference)]
        whole = end.reason is not FinishReason.CANCELLED
        if compared != (expected.reference if whole else expected.reference[: len(compared)]):
            self.faults.append(f"{name}: the reply is not the reference's")
        self.counts["tokens as the reference"] += len(compared)

    def _check_sentence(self, name: str, message: str) -> None:
        if not message or "\n" in message or "internal error" in message:
            self.faults.append(f"{name}: no sentence for people: {message!r}")
