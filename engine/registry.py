"""Registry of drafters: the names, descriptions and modules of all drafters, and the folders that `--draft` may name.

This module imports nothing of the engine, so that command line, settings and messages can list drafters without torch.
An engine imports a drafter's module when it builds the drafter (`engine.worker.assembly`).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

CORE, RESEARCH = "specchat.engine.drafters", "specchat.engine.research"
"""Packages of the drafters' modules."""


class Condition(NamedTuple):
    """What must be loaded so that an engine has a drafter."""

    needs: str = ""
    """What the user must give, for messages and documents; empty for nothing."""
    parts: tuple[str, ...] = ()
    """Kinds of parts (`PARTS`), one of which the drafter is built from; empty if it needs no part."""
    models: int = 0
    """Minimum number of draft models."""
    trees: bool = False
    """Whether the draft models must run on a CPU or with captured passes."""


ALWAYS = Condition()
_MODEL = Condition("--draft", models=1)
_TREES = _MODEL._replace(trees=True)
_SEVERAL = Condition("several draft models: --draft A --draft B", models=2, trees=True)
_HEAD = Condition("a draft head for the target: specchat distill makes one", parts=("head",))
_BLOCK = Condition("--draft with a block drafter for the target (DFlash, DSpark)", parts=("block",))
_ANY_HEAD = Condition("a draft head or a block drafter for the target", parts=("head", "block"))
_TABLES = Condition("--draft with what specchat distill --kind bigram makes", parts=("tables",))
_LOOK_AHEAD = Condition("--draft with what specchat distill --kind pass makes", parts=("look_ahead",))


class Reads(Enum):
    """Weights that are read in a draft step."""

    NOTHING = "none, or too few to count"
    DRAFT = "weights of one draft model or head"
    OTHER = "weights of several networks, or of the target"


class DrafterEntry(NamedTuple):
    """A drafter."""

    name: str
    summary: str
    """What it drafts, for help and documents."""
    module: str
    """Has a function `build(context, name)` that returns the drafter (`engine.drafters.build_context`)."""
    condition: Condition = ALWAYS
    reads: Reads = Reads.NOTHING
    source: str = ""
    """Publication that describes a research drafter."""

    @property
    def research(self) -> bool:
        """Whether it is a method of the literature that few people use."""
        return self.module.startswith(RESEARCH)

    @property
    def on_request(self) -> bool:
        """Whether it is built when a request first names it, as nothing was loaded for it alone."""
        return self.research and not self.condition.parts and self.condition.models < 2


_LEVIATHAN = "Leviathan et al. 2023, section "
_ENTRIES = (
    DrafterEntry("pass", "the target's own drafts at look-ahead positions", f"{RESEARCH}.pass_drafter", _LOOK_AHEAD,
        Reads.OTHER, "PaSS, Monea et al. 2023"),
    DrafterEntry("merged", "chains of several draft models in one prefix tree", f"{RESEARCH}.merged", _SEVERAL,
        Reads.OTHER, "SpecInfer, Miao et al. 2024"),
    DrafterEntry("bigram", "what most often follows a token, counted", f"{RESEARCH}.tables", _TABLES,
        source=_LEVIATHAN + "3.6"),
    DrafterEntry("model", "chains of a smaller model", f"{CORE}.draft_model", _MODEL, Reads.DRAFT),
    DrafterEntry("model-tree", "trees of a smaller model that branch where it is unsure", f"{CORE}.draft_model", _TREES,
        Reads.DRAFT),
    DrafterEntry("hierarchical", "a smaller model whose drafts are drafted by the text", f"{RESEARCH}.hierarchical",
        _TREES, Reads.OTHER, _LEVIATHAN + "6"),
    DrafterEntry("combined", "suffix where the text repeats, head or block elsewhere", f"{CORE}.combined", _ANY_HEAD,
        Reads.DRAFT),
    DrafterEntry("block", "whole blocks by one pass on the target's hidden states", f"{CORE}.block.drafter", _BLOCK,
        Reads.DRAFT),
    DrafterEntry("head", "trees of a layer that reads the target's hidden states", f"{CORE}.head.drafter", _HEAD,
        Reads.DRAFT),
    DrafterEntry("suffix", "what most often followed the end of the text before", f"{CORE}.suffix"),
    DrafterEntry("ngram", "what most often followed the last one to three tokens", f"{RESEARCH}.ngram",
        source='prompt lookup, akunu, "Speculative Decoding with N-grams"'),
    DrafterEntry("copy", "what followed the last tokens when they occurred last", f"{RESEARCH}.ngram",
        source=_LEVIATHAN + "3.6"),
    DrafterEntry("random", "random tokens", f"{RESEARCH}.random_tokens", source=_LEVIATHAN + "3.6"),
    DrafterEntry("unigram", "the most frequent tokens, counted", f"{RESEARCH}.tables", _TABLES,
        source=_LEVIATHAN + "3.6"),
    DrafterEntry("none", "nothing: every round is a plain one", f"{CORE}.none"),
)  # fmt: skip
DRAFTERS = {entry.name: entry for entry in _ENTRIES}
"""All drafters by name, best first: `auto` is the first whose condition is met."""


class PartKind(NamedTuple):
    """A kind of folder that `--draft` may name, which is no draft model."""

    part: str
    """Name of the part in conditions."""
    card: str
    """Name of a file that only such folders have."""
    module: str
    loader: str
    """Name of the function of `module` that loads the folder for a target: `loader(folder, model)`."""
    needs: str = ""
    """Continues "<folder> …" and precedes "a model that continues text"; empty if any kind of target will do."""


_HEAD_NEEDS = "is a draft head, which needs"
PARTS = (
    PartKind("look_ahead", "look-ahead.json", f"{RESEARCH}.pass_drafter", "load_look_ahead",
        "has look-ahead embeddings, which need"),
    PartKind("tables", "tables.json", f"{RESEARCH}.tables", "load_tables"),
    PartKind("head", "head.json", f"{CORE}.head.folder", "load_head", _HEAD_NEEDS),
)  # fmt: skip
PUBLISHED = PartKind("head", "", f"{CORE}.published.load", "load_published", _HEAD_NEEDS)
"""Heads of other authors, which are found by their configuration."""
MTP_LAYER = PartKind("head", "", f"{CORE}.published.mtp", "load_mtp_file", _HEAD_NEEDS)
"""GGUF files of a target's multi-token-prediction layer alone."""
BLOCK = PartKind("block", "", f"{CORE}.block.reading", "load_block", "is a block drafter, which needs")
"""Block drafters, found likewise."""


def unknown_drafter(name: str, choices: Iterable[str]) -> str:
    """Error message for a drafter that the loaded models do not offer."""
    needs = DRAFTERS[name].condition.needs if name in DRAFTERS else ""
    hint = f" (it needs {needs})" if needs else ""
    return f"drafter {name!r} is not available{hint}: choose one of {', '.join(choices)}"
