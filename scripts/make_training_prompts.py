"""Prompts of many kinds for the training of a draft head, built from templates and lists of words.

Run from the repository: python scripts/make_training_prompts.py OUT.jsonl [--passages FOLDER] [--seed N]

Texts to summarise, rewrite or quote are replies of the target: FOLDER holds the training text that `specchat distill`
wrote with an earlier file of prompts. No prompt of the bench is among them, nor any of the kinds of
`assets/prompts/unseen.json`, nor a letter or a speech.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from specchat.engine.models.load import load_tokenizer
from specchat.engine.models.resolve import resolve
from specchat.engine.models.store import ModelStore
from specchat.engine.tools.distill.text import Corpus

ASSETS = Path(__file__).parents[1] / "assets"
HELD_OUT = re.compile(
    r"riddle|\bconvert|\bsql\b|\breview|\bspeech|\btoast|letter|e-?mail|receptionist|waiter|customer|\bcounter", re.I
)
"""Words of the kinds that the head is judged by."""
PER_KIND = 700
"""Prompts of a kind; of everyday questions, which are asked most, all there are."""
_REPLY = "<|im_start|>assistant\n"
_END = "<|im_end|>"
_SHORTEST, _LONGEST = 150, 560
"""Characters of a passage."""

Make = Callable[[random.Random], str]


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--passages", type=Path, help="folder of training text")
    parser.add_argument("--models", type=Path, default=Path("~/.cache/specchat/models").expanduser())
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    words = json.loads((ASSETS / "prompts" / "training-words.json").read_text(encoding="utf-8"))
    draw = random.Random(given.seed)
    kinds = {name: plain(pattern, words) for name, pattern in words["templates"].items()}
    everyday = (ASSETS / "prompts" / "everyday.txt").read_text(encoding="utf-8").splitlines()
    if given.passages:
        texts = sorted(set(passages(given.passages, given.models)))
        kinds |= {name: around(pattern, words, texts) for name, pattern in words["passage_templates"].items()}
    bench = {key(prompt) for file in ASSETS.glob("prompts/*.json") for prompt in shipped(file)}
    lines = []
    for make in kinds.values():
        prompts: dict[str, str] = {}
        for _ in range(PER_KIND * 4):
            prompt = make(draw)
            if len(prompts) < PER_KIND and key(prompt) not in bench and not HELD_OUT.search(prompt):
                prompts.setdefault(key(prompt), prompt)
        lines += [[prompt, *follow_ups(words, draw)] for prompt in prompts.values()]
    asked = [prompt for prompt in everyday if key(prompt) not in bench and not HELD_OUT.search(prompt)]
    lines += [[prompt, *follow_ups(words, draw)] for prompt in asked]
    draw.shuffle(lines)
    given.out.write_text("".join(json.dumps({"turns": turns}, ensure_ascii=False) + "\n" for turns in lines))
    print(f"{len(lines)} conversations of {len(kinds) + 1} kinds")


def follow_ups(words: dict[str, Any], draw: random.Random) -> list[str]:
    """User turns after the first one; none for half of the conversations."""
    return [filled(turn, words, draw) for turn in draw.sample(words["follow_ups"], draw.choice((0, 0, 1, 2)))]


def plain(patterns: list[str], words: dict[str, Any]) -> Make:
    """Draws one of the patterns and fills it."""
    return lambda draw: varied(filled(draw.choice(patterns), words, draw), draw)


def around(patterns: list[str], words: dict[str, Any], texts: list[str]) -> Make:
    """Draws one of the patterns and fills it, with one of the texts as its passage."""
    return lambda draw: filled(draw.choice(patterns), words, draw).replace("[passage]", draw.choice(texts))


def filled(pattern: str, words: dict[str, Any], draw: random.Random) -> str:
    """A pattern with a word of its list instead of each $list; patterns in the lists are filled too."""
    return re.sub(r"\$(\w+)", lambda found: filled(draw.choice(words["lists"][found[1]]), words, draw), pattern)


def varied(prompt: str, draw: random.Random) -> str:
    """Now and then as people type: without a capital, without the last stop."""
    if draw.random() < 0.15:
        prompt = prompt[0].lower() + prompt[1:]
    return prompt.rstrip(".?") if draw.random() < 0.1 else prompt


def passages(folder: Path, models: Path) -> Iterator[str]:
    """Whole paragraphs and sentences from the beginnings of replies."""
    tokenizer = load_tokenizer(resolve("smollm2-135m", ModelStore(models), lambda *_: None).folder(weights=False))
    for talk in Corpus(folder).conversations():
        for reply in str(tokenizer.decode(talk.tokens)).split(_REPLY)[1:]:
            whole, _, _ = reply[:_LONGEST].partition(_END)
            end = max(whole.rfind(mark) for mark in (". ", ".\n", "!", "?"))
            if end >= _SHORTEST and "�" not in whole and not HELD_OUT.search(whole):
                yield whole[: end + 1].strip()


def shipped(file: Path) -> list[str]:
    """Prompts of a set."""
    content = json.loads(file.read_text(encoding="utf-8"))
    return list(content["prompts"]) if "prompts" in content else []


def key(prompt: str) -> str:
    """What is the same of prompts that differ in capitals and marks alone."""
    return re.sub(r"\W+", " ", prompt.lower()).strip()


if __name__ == "__main__":
    main()
