"""Registry of drafters and of what `--draft` may name besides draft models.

A drafter's module has a function `build(context, name)`. It is imported when the drafter is built: when the engine is
loaded, or, of research drafters that need nothing of their own, when a request first names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.drafter import Drafter
from specchat.engine.decoding.tree import BRANCHES
from specchat.engine.drafters.datastore import Datastore
from specchat.engine.files import local_path
from specchat.engine.models.checkpoint import MTP, has_weights, read_json, tensor_names
from specchat.engine.models.encoder_decoder import require_decoder_only
from specchat.engine.models.families import family_of
from specchat.engine.models.packed.load import Model
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import Progress

MOST_MODELS = BRANCHES
"""Draft models that can be merged."""


class DraftPart(Protocol):
    """A draft that is not a model: a head, tables, embeddings."""

    @property
    def name(self) -> str:
        """For display."""

    @property
    def weight_bytes(self) -> int:
        """Memory of its weights."""

    @property
    def taps(self) -> tuple[int, ...]:
        """Depths of the target's hidden states that it reads: 0 the embeddings, the last one normed."""


@dataclass(slots=True)
class BuildContext:
    """Everything that drafters are built from."""

    model: Model
    """The target."""
    target: Backend
    datastore: Datastore
    draft_models: Sequence[tuple[str, Backend]] = ()
    """Names and runners of draft models."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """Loaded parts of drafters by kind: `head`, `tables`, `look_ahead`."""
    prefill_chunk: int = 256
    """Prompt tokens that a draft model reads in one pass."""
    drafters: Mapping[str, Any] = field(default_factory=dict)
    """All available drafters by name; drafters that combine others look them up here."""
    members: Sequence[Any] = ()
    """The draft models with what their drafters share (`engine.drafters.draft_model.members`), once one is built."""

    @property
    def never(self) -> frozenset[int]:
        """Tokens that are not drafted from text: turn marks of the chat template, which no reply contains."""
        return frozenset(self.model.tokenizer.all_special_ids) - self.model.eos_ids


class _Entry(NamedTuple):
    """A drafter."""

    name: str
    module: str
    available: Callable[[BuildContext], bool] = lambda _: True
    on_request: bool = False
    """Whether it is built when it is first requested, not when the engine is loaded."""


def _part(kind: str) -> Callable[[BuildContext], bool]:
    return lambda context: kind in context.parts


def _trees(context: BuildContext) -> bool:
    """Whether draft models run on a CPU or with captured passes; others draft chains alone."""
    backends = [backend for _, backend in context.draft_models]
    return bool(backends) and (backends[0].device.type == "cpu" or backends[0].capabilities.captured)


_CORE, _RESEARCH = "specchat.engine.drafters", "specchat.engine.research"
_HEAD_NEEDS = "is a draft head, which needs"
_ENTRIES = (
    _Entry("pass", f"{_RESEARCH}.pass_drafter", _part("look_ahead")),
    _Entry("merged", f"{_RESEARCH}.merged", lambda context: len(context.draft_models) > 1 and _trees(context)),
    _Entry("bigram", f"{_RESEARCH}.tables", _part("tables")),
    _Entry("model", f"{_CORE}.draft_model", lambda context: bool(context.draft_models)),
    _Entry("model-tree", f"{_CORE}.draft_model", _trees),
    _Entry("hierarchical", f"{_RESEARCH}.hierarchical", _trees, on_request=True),
    _Entry("combined", f"{_CORE}.combined", _part("head")),
    _Entry("head", f"{_CORE}.head.drafter", _part("head")),
    _Entry("suffix", f"{_CORE}.suffix"),
    _Entry("ngram", f"{_RESEARCH}.ngram", on_request=True),
    _Entry("copy", f"{_RESEARCH}.ngram", on_request=True),
    _Entry("random", f"{_RESEARCH}.random_tokens", on_request=True),
    _Entry("unigram", f"{_RESEARCH}.tables", _part("tables")),
    _Entry("none", f"{_CORE}.none"),
)
"""All drafters, best first."""


class Drafters(Mapping[str, Drafter]):
    """The available drafters by name, best first; each is built when it is first looked up.

    Args:
        context: what they are built from.
    """

    def __init__(self, context: BuildContext) -> None:
        self._context = context
        context.drafters = self
        self._entries = {entry.name: entry for entry in _ENTRIES if entry.available(context)}
        self.built: dict[str, Drafter] = {}
        """The drafters that have been built."""
        self._warm = False
        self.step_seconds: dict[str, float] = {}
        """Time of a draft step for one row, by drafter, as far as it could be measured while warming up."""

    def build(self) -> None:
        """Build all that do not wait for a request."""
        for entry in self._entries.values():
            if not entry.on_request:
                self[entry.name]

    def warm_up(self) -> None:
        """Warm up all that have been built, and from now on every drafter when it is built."""
        self._warm = True
        for name, drafter in self.built.items():
            self._warm_up(name, drafter)

    def _warm_up(self, name: str, drafter: Drafter) -> None:
        seconds = drafter.warm_up()
        if seconds is not None:
            self.step_seconds[name] = seconds

    def __getitem__(self, name: str) -> Drafter:
        if name not in self.built:
            drafter: Drafter = import_module(self._entries[name].module).build(self._context, name)
            if self._warm:
                self._warm_up(name, drafter)
            self.built[name] = drafter
        return self.built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class _Kind(NamedTuple):
    """A kind of folder that `--draft` may name; `loader(folder, model)` in `module` loads it."""

    part: str
    card: str
    """Name of a file that only such folders have."""
    module: str
    loader: str
    needs: str
    """Continues "<folder> …" and precedes the kind of model, where the target is of another kind."""


_KINDS = (
    _Kind(
        "look_ahead",
        "look-ahead.json",
        f"{_RESEARCH}.pass_drafter",
        "load_look_ahead",
        "has look-ahead embeddings, which need",
    ),
    _Kind("tables", "tables.json", f"{_RESEARCH}.tables", "load_tables", ""),
    _Kind("head", "head.json", f"{_CORE}.head.folder", "load_head", _HEAD_NEEDS),
)
_PUBLISHED = _Kind("head", "", f"{_CORE}.published.load", "load_published", _HEAD_NEEDS)


def names_part(spec: str, store: ModelStore, progress: Progress) -> bool:
    """Whether `--draft` names something other than a draft model."""
    return _find(spec, store, progress) is not None


def load_part(spec: str, model: Model, store: ModelStore, progress: Progress) -> dict[str, Any]:
    """The part that `--draft` names, by its kind; empty for a draft model.

    Raises:
        EngineError: it does not fit the target, or is broken.
    """
    found = _find(spec, store, progress)
    if found is None:
        return {}
    kind, folder = found
    if kind.needs:
        require_decoder_only(model, f"{spec} {kind.needs}")
    return {kind.part: getattr(import_module(kind.module), kind.loader)(folder, model)}


def load_own_part(folder: Path, model: Model) -> dict[str, Any]:
    """A part that the folder of the target contains; empty if it states none.

    Raises:
        EngineError: it is stated, and missing or broken.
    """
    config = read_json(folder / "config.json")
    config = config.get("text_config") or config
    family = family_of(config.get("model_type"))
    if family is None or not family.mtp:
        return {}
    layers = config.get("mtp_num_hidden_layers")
    if not layers and (not has_weights(folder) or not any(name.startswith(MTP) for name in tensor_names(folder))):
        return {}
    return {"head": import_module(f"{_CORE}.published.mtp").load_mtp(folder, model)}


def _find(spec: str, store: ModelStore, progress: Progress) -> tuple[_Kind, Path] | None:
    """The folder of what `--draft` names, and its kind; None for a draft model."""
    folder = local_path(spec)
    for kind in _KINDS:
        if folder and (folder / kind.card).is_file():
            return kind, folder
    published = import_module(f"{_CORE}.published.find").find_published(spec, store, progress)
    return (_PUBLISHED, published) if published else None
