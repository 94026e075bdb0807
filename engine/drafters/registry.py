"""Registry of drafters and of what `--draft` may name besides draft models.

A drafter's module has a function `build(context, name)`. It is imported when the drafter is built: when the engine is
loaded, or, of research drafters that need nothing of their own, when a request first names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from specchat.engine.decoding.drafter import Drafter
from specchat.engine.decoding.tree import BRANCHES
from specchat.engine.drafters.context import BuildContext
from specchat.engine.drafters.published.find import find_published
from specchat.engine.models.encoder_decoder import require_decoder_only
from specchat.engine.models.load import LoadedModel
from specchat.engine.models.packed.load import PackedModel
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import Progress

MOST_MODELS = BRANCHES
"""Draft models that can be merged."""


class DraftPart(Protocol):
    """What `--draft` names, if it is not a model: a head, tables, embeddings."""

    @property
    def name(self) -> str:
        """For display."""

    @property
    def weight_bytes(self) -> int:
        """Memory of its weights."""


@runtime_checkable
class Tapping(Protocol):
    """A part that reads hidden states of the target."""

    @property
    def taps(self) -> tuple[int, ...]:
        """Their depths: 0 the embeddings, the last one normed."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One drafter, or one way of building it."""

    name: str
    module: str
    available: Callable[[BuildContext], bool] = lambda _: True
    on_request: bool = False
    """Whether it is built when it is first requested, not when the engine is loaded."""


def _part(kind: str) -> Callable[[BuildContext], bool]:
    return lambda context: kind in context.parts


def _models(context: BuildContext) -> bool:
    return bool(context.draft_models)


def _trees(context: BuildContext) -> bool:
    """Whether draft models run on a CPU or with captured passes; others draft chains alone."""
    if not context.draft_models:
        return False
    backend = context.draft_models[0][1]
    return backend.device.type == "cpu" or backend.capabilities.captured


_CORE, _RESEARCH = "specchat.engine.drafters", "specchat.engine.research"
_ENTRIES = (
    _Entry("pass", f"{_RESEARCH}.pass_drafter", _part("look_ahead")),
    _Entry(
        "merged",
        f"{_RESEARCH}.merged",
        lambda context: len(context.draft_models) > 1 and _trees(context),
    ),
    _Entry("bigram", f"{_RESEARCH}.tables", _part("tables")),
    _Entry("model", f"{_CORE}.draft_model", _models),
    _Entry("model-tree", f"{_CORE}.draft_model", _trees),
    _Entry(
        "hierarchical",
        f"{_RESEARCH}.hierarchical",
        _trees,
        on_request=True,
    ),
    _Entry("combined", f"{_CORE}.combined", _part("head")),
    _Entry("head", f"{_CORE}.head.drafter", _part("head")),
    _Entry("suffix", f"{_CORE}.suffix"),
    _Entry("ngram", f"{_RESEARCH}.ngram", on_request=True),
    _Entry("copy", f"{_RESEARCH}.copying", on_request=True),
    _Entry("random", f"{_RESEARCH}.random_tokens", on_request=True),
    _Entry("unigram", f"{_RESEARCH}.tables", _part("tables")),
    _Entry("none", f"{_CORE}.none"),
)
"""All drafters, best first."""


class Drafters(MutableMapping[str, Drafter]):
    """The available drafters by name, best first; each is built when it is first looked up.

    Args:
        context: what they are built from.
    """

    def __init__(self, context: BuildContext) -> None:
        self._context = context
        context.drafters = self
        self._entries = {entry.name: entry for entry in _ENTRIES if entry.available(context)}
        self._built: dict[str, Drafter] = {}
        self._warm = False
        self.step_seconds: dict[str, float] = {}
        """Time of a draft step for one row, by drafter, as far as it could be measured while warming up."""

    @property
    def built(self) -> dict[str, Drafter]:
        """The drafters that have been built."""
        return dict(self._built)

    def build(self) -> None:
        """Build all that do not wait for a request."""
        for entry in self._entries.values():
            if not entry.on_request:
                self[entry.name]

    def warm_up(self) -> None:
        """Warm up all that have been built, and from now on every drafter when it is built."""
        self._warm = True
        for name, drafter in self._built.items():
            self._warm_up(name, drafter)

    def _warm_up(self, name: str, drafter: Drafter) -> None:
        seconds = drafter.warm_up()
        if seconds is not None:
            self.step_seconds[name] = seconds

    def __getitem__(self, name: str) -> Drafter:
        if name not in self._built:
            drafter: Drafter = import_module(self._entries[name].module).build(self._context, name)
            if self._warm:
                self._warm_up(name, drafter)
            self._built[name] = drafter
        return self._built[name]

    def __setitem__(self, name: str, drafter: Drafter) -> None:
        self._entries.setdefault(name, _Entry(name, ""))
        self._built[name] = drafter

    def __delitem__(self, name: str) -> None:
        del self._entries[name]
        self._built.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


@dataclass(frozen=True, slots=True)
class _Kind:
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
    _Kind("head", "head.json", f"{_CORE}.head.folder", "load_head", "is a draft head, which needs"),
)


def names_part(spec: str, store: ModelStore, progress: Progress) -> bool:
    """Whether `--draft` names something other than a draft model."""
    return _kind_of(spec) is not None or find_published(spec, store, progress) is not None


def load_part(spec: str, model: LoadedModel | PackedModel, store: ModelStore, progress: Progress) -> dict[str, Any]:
    """The part that `--draft` names, by its kind; empty for a draft model.

    Raises:
        EngineError: it does not fit the target, or is broken.
    """
    kind = _kind_of(spec)
    if kind is None:
        folder = find_published(spec, store, progress)
        if folder is None:
            return {}
        require_decoder_only(model, f"{spec} is a draft head, which needs")
        return {"head": import_module(f"{_CORE}.published.load").load_published(folder, model)}
    if kind.needs:
        require_decoder_only(model, f"{spec} {kind.needs}")
    load = getattr(import_module(kind.module), kind.loader)
    return {kind.part: load(Path(spec).expanduser(), model)}


def _kind_of(spec: str) -> _Kind | None:
    folder = Path(spec).expanduser()
    return next((kind for kind in _KINDS if (folder / kind.card).is_file()), None)
