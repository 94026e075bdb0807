"""From what `--draft` names to the folder of a published head: a folder, or a repository on the hub."""

from __future__ import annotations

from pathlib import Path

from specchat.engine.drafters.published.files import WEIGHTS, holds_head, is_published
from specchat.engine.errors import EngineError
from specchat.engine.models.catalog import PRESETS, hub_folder
from specchat.engine.models.checkpoint import read_json
from specchat.engine.models.hub import HUB_ID, cached_snapshot, fetch_from_hub, hub_file, hub_files
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import Progress

_CONFIG = "config.json"


def find_published(spec: str, store: ModelStore, progress: Progress) -> Path | None:
    """Folder of the published head that `spec` names, fetched if need be; None if it names something else.

    Args:
        spec: a folder, the name of a stored head, or a hub id (organisation/name).
        store: where heads of the hub are kept, among the models.
        progress: called with the stage fetch.

    Raises:
        EngineError: it cannot be fetched.
    """
    path = Path(spec).expanduser()
    if spec in PRESETS or not spec.strip():
        return None
    stored = store.find(spec)
    if stored is not None or path.is_dir():
        folder = stored or path
        return folder if is_published(folder) else None
    if path.exists() or not HUB_ID.fullmatch(spec):
        return None
    stored = store.find(hub_folder(spec))
    if stored is not None:
        return stored if is_published(stored) else None
    return None if cached_snapshot(spec) else _from_hub(spec, store, progress)


def _from_hub(hub_id: str, store: ModelStore, progress: Progress) -> Path | None:
    progress("fetch", f"Looking up {hub_id} on the hub", None)
    files = hub_files(hub_id)
    if _CONFIG not in files or not any(name in files for name in WEIGHTS):
        return None
    if not holds_head(read_json(hub_file(hub_id, _CONFIG)), files):
        return None
    name = hub_folder(hub_id)
    with store.building(name, progress) as work:
        if (ready := store.find(name)) is not None:
            return ready
        fetched = work / "model"
        fetch_from_hub(hub_id, fetched, progress, _needed)
        return store.complete(name, fetched, hub_id)


def _needed(hub_id: str, names: list[str]) -> list[str]:
    """Its configuration and the weights that are preferred."""
    weights = next((name for name in WEIGHTS if name in names), None)
    if weights is None:
        raise EngineError(f"{hub_id} has no weights that a draft head has ({' or '.join(WEIGHTS)}): choose another")
    return [_CONFIG, weights]
