"""Sound inputs of every kind, small ones, and the command that reads each."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.interface.paced import TRACES
from specchat.app.settings.named_files import Presets
from specchat.app.settings.settings import Settings
from specchat.app.settings.settings_file import save_settings
from specchat.app.storage.store import Store
from specchat.engine import message_parts
from tests.tiny_model import write_tiny_gguf, write_tiny_model


@dataclass(frozen=True)
class Case:
    """One copy of an input, and what reads it."""

    damageable: list[Path]
    kept: Path
    """The folder in which every file must still be there afterwards, under whatever name."""
    command: Callable[[], int]
    rewrites: bool = False
    """Whether a file that is read in spite of its damage may be changed: SQLite repairs what it opens."""


class Inputs:
    """Written once; every case is a copy."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._model = write_tiny_model(folder / "model", eos_token_id=0)
        (folder / "gguf").mkdir()
        write_tiny_gguf(self._model, folder / "gguf" / "model.gguf")
        _write_head(self._model, folder / "head")
        save_settings(
            folder / "config" / "settings.toml", Settings(temperature=0.5, theme="nord"), ["temperature", "theme"]
        )
        Presets(folder / "config" / "presets").save("mine", Settings(gamma=3))
        with Store(folder / "data" / "specchat.db") as store:
            for number in range(20):
                chat = store.create_chat(f"chat {number}")
                prompt = store.add_message(chat.id, "user", "question " * 30)
                reply = store.add_message(chat.id, "assistant", "answer", parent=prompt)
                store.append_rounds(reply, message_parts(" more"), ['{"record": "round"}' * 20] * 10)
                store.finish_message(reply, "eos")
        (folder / "trace").mkdir()
        shutil.copy(TRACES / "side-right.jsonl", folder / "trace" / "trace.jsonl")

    def case(self, kind: str, home: Path) -> Case:
        """A copy of an input of this kind below `home`."""
        name, files, command = {
            "model folder": ("model", "*.j*", _ask),
            "safetensors": ("model", "*.safetensors", _ask),
            "GGUF": ("gguf", "*", lambda at: _ask(at / "model.gguf")),
            "head folder": ("head", "*", lambda at: _ask(self._model, "--draft", at, "--drafter", "head")),
            "settings": ("config", "settings.toml", lambda _: _ask(self._model)),
            "preset": ("config", "presets/mine.toml", lambda at: _preset(at / "presets")),
            "database": ("data", "specchat.db", lambda _: _specchat("export", "--format", "json")),
            "trace": ("trace", "*", lambda at: _specchat("screenshot", at / "trace.jsonl", "--out", home / "p.svg")),
        }[kind]
        copy = shutil.copytree(self._folder / name, home / name)
        return Case(sorted(copy.glob(files)), copy, lambda: command(copy), rewrites=kind == "database")


def _specchat(*arguments: object) -> int:
    from specchat.app.cli.main import run

    return run([str(argument) for argument in arguments])


def _ask(target: Path, *options: object) -> int:
    import torch

    torch.set_num_threads(1)
    return _specchat("ask", "hello", "--target", target, "--dtype", "float32", "--max-tokens", 6, *options)


def _preset(folder: Path) -> int:
    from specchat.app.cli.main import FAILED
    from specchat.app.errors import AppError

    try:
        Presets(folder).apply("mine", Settings())
    except AppError as error:
        import sys

        print(f"specchat: {error}", file=sys.stderr)
        return FAILED
    return 0


def _write_head(model: Path, folder: Path) -> None:
    import torch

    from specchat.engine.drafters.head.folder import HeadAcceptance, HeadCard, save_head
    from specchat.engine.drafters.head.network import DraftHead
    from specchat.engine.models.load import fingerprint, load_model
    from specchat.engine.progress import ignore_progress
    from specchat.engine.tools.distill.eagle import head_shape

    target = load_model(model, torch.device("cpu"), torch.float32, ignore_progress)
    shape = head_shape(target.model, target.name)
    reached = HeadAcceptance(0.5, (0.5, 0.4), 1.5)
    card = HeadCard(target.name, fingerprint(target.model), shape, 10, 1, 0.1, 2, reached, reached)
    save_head(folder, DraftHead(shape), torch.arange(0, target.vocab_size, 2), card)
