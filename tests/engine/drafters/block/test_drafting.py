"""Drafts of a block drafter in an engine are those of the published definition, whatever brought the context there."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from specchat.engine import Engine, Event, Request, Sampling
from specchat.engine.decoding.tree import BRANCHES
from specchat.engine.drafters.block.reading import load_block
from specchat.engine.models.load import LoadedModel
from specchat.engine.worker.assembly import assemble_loaded
from tests.engine.block_drafters import KINDS, Made, draft_in_plain_words
from tests.engine.hybrids import hybrid
from tests.engine.published_heads import llama, write
from tests.engine.tiny import VOCABULARY, ids_of, rounds_of, run_together, tiny_engine

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = tuple((37 * i + 11 * (i // 9)) % 250 for i in range(75))
"""Three chunks and two blocks and a half."""


def fewer_layers(kind: str) -> Made:
    """A drafter for a target of four layers."""
    config, tensors = KINDS[kind]()
    return config | {"target_layer_ids": [-1, 0, 2], "num_target_layers": 4}, tensors


def target_of(name: str) -> LoadedModel:
    return llama() if name == "llama" else hybrid(name)


@contextmanager
def drafting(made: Made, target: LoadedModel, folder: Path, cache_memory: float | None = None) -> Iterator[Engine]:
    loaded = load_block(write(folder / "drafter", *made), target)
    with tiny_engine(
        assemble=lambda config, _: assemble_loaded(config, target, block=loaded), cache_memory=cache_memory
    ) as engine:
        yield engine


def known_of(made: Made) -> list[int]:
    """The tokens that it scores."""
    return made[1]["t2d"].nonzero()[:, 0].tolist() if "t2d" in made[1] else list(range(VOCABULARY))


def check_drafts(made: Made, plain: LoadedModel, prompt: Sequence[int], events: Sequence[Event]) -> int:
    """Whether each round's draft has the likeliest tokens of the published definition; returns the number of tokens."""
    text, count, known = [*prompt], 0, known_of(made)
    for record in rounds_of(events):
        logits, _ = draft_in_plain_words(made, plain, text, record.drafted)
        for place, (scores, token) in enumerate(zip(logits, record.drafted, strict=True)):
            rank = int((scores > scores[known.index(token)] + 1e-3).sum())
            assert rank < (BRANCHES if place < record.accepted else 1)  # of a tree the record has the accepted branch
        text += record.emitted
        count += len(record.drafted)
    return count


def ask(name: str, prompt: Sequence[int], **options: object) -> Request:
    return Request(name, prompt_ids=tuple(prompt), **{"drafter": "block", "gamma": 6, "max_tokens": 12} | options)  # type: ignore[arg-type]


CASES = [
    *(("llama", kind) for kind in ("dflash 2", "dflash sliding", "dspark")),
    ("qwen3_5_text", "few"),
    ("llama", "speculators shifted"),
    ("lfm2", "few"),
]


@pytest.mark.daily(2)
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_drafts_after_chunks_forks_and_reuse_are_the_published_ones(name: str, kind: str, tmp_path: Path) -> None:
    made = fewer_layers("dspark") if kind == "few" else KINDS[kind]()
    plain = target_of(name)
    with drafting(made, target_of(name), tmp_path) as engine:
        first = list(engine.stream(ask("first", PROMPT)))
        continued = [*PROMPT, *ids_of(first), 5, 6, 7]
        forked = [*PROMPT[:50], 9, 8, 7]
        prompts = [PROMPT, continued, forked, [3, 4]]
        alone = [list(engine.stream(ask(f"alone {i}", prompt))) for i, prompt in enumerate(prompts)]
        together = run_together(engine, [ask(f"with {i}", prompt) for i, prompt in enumerate(prompts)])
        without = [ids_of(engine.stream(ask(f"without {i}", p, drafter="none"))) for i, p in enumerate(prompts)]
    assert check_drafts(made, plain, PROMPT, first)
    for replies in (alone, together):
        assert [ids_of(events) for events in replies] == without
        for prompt, events in zip(prompts, replies, strict=True):
            assert check_drafts(made, plain, prompt, events)


def test_drafts_stay_right_where_texts_are_evicted_and_read_again(tmp_path: Path) -> None:
    made, plain = KINDS["dspark"](), llama()
    with drafting(made, llama(), tmp_path, cache_memory=1e-6) as engine:
        requests = [ask(str(i), [i + 1, *PROMPT]) for i in range(4)]
        replies = run_together(engine, requests)
    for request, events in zip(requests, replies, strict=True):
        assert check_drafts(made, plain, request.prompt_ids or (), events)


@pytest.mark.daily(1)
@pytest.mark.parametrize("kind", ["dspark", "dflash 2", "speculators dspark"])
def test_q_is_what_each_token_was_drawn_from(kind: str, tmp_path: Path) -> None:
    """After the tokens before it in the draft; at a temperature, and filtered."""
    made, plain = KINDS[kind](), llama()
    known, tested = known_of(made), 0
    with drafting(made, llama(), tmp_path) as engine:
        for top_k in (0, 7):
            sampling = Sampling(temperature=0.8, top_k=top_k)
            text = [*PROMPT]
            for record in rounds_of(engine.stream(ask(f"r{top_k}", PROMPT, sampling=sampling, max_tokens=30))):
                logits, _ = draft_in_plain_words(made, plain, text, record.drafted)
                for scores, token, q in zip(logits, record.drafted, record.q, strict=False):
                    scores = scores / 0.8
                    if top_k:
                        scores[scores < scores.topk(top_k).values[-1]] = -torch.inf
                    assert q == pytest.approx(float(scores.softmax(-1)[known.index(token)]), rel=1e-2, abs=1e-4)
                    tested += 1
                text += record.emitted
    assert tested > 20
