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
from tests.tiny_model import write_tiny_gguf, write_tiny_model


@dataclass(frozen=True)
class Case:
    """One copy of an input, and what reads it."""

    damageable: list[Path]
    kept: Path
    """The folder in which every file must still be there afterwards, under whatever name."""
    command: Callable[[], int]
    rewrites: bool = False
    """Whether a file that is read in spite of its damage may be changed: SQLite mends what it opens."""


class Inputs:
    """Written once; every case is a copy."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._model = write_tiny_model(folder / "model", eos_token_id=0)
        write_tiny_gguf(self._model, folder / "model.gguf")
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
                store.append_rounds(reply, " more", ['{"record": "round"}' * 20] * 10)
                store.finish_message(reply, "eos")
        shutil.copy(TRACES / "side-right.jsonl", folder / "trace.jsonl")

    def case(self, kind: str, home: Path) -> Case:
        """A copy of an input of this kind below `home`."""
        home.mkdir()
        sound, copy = self._folder, home / "input"
        match kind:
            case "model folder":
                shutil.copytree(sound / "model", copy)
                files = [file for file in sorted(copy.iterdir()) if file.suffix != ".safetensors"]
                return Case(files, copy, lambda: _ask(copy))
            case "safetensors":
                shutil.copytree(sound / "model", copy)
                return Case([copy / "model.safetensors"], copy, lambda: _ask(copy))
            case "GGUF":
                copy.mkdir()
                shutil.copy(sound / "model.gguf", copy)
                return Case([copy / "model.gguf"], copy, lambda: _ask(copy / "model.gguf"))
            case "head folder":
                shutil.copytree(sound / "head", copy)
                return Case(
                    sorted(copy.iterdir()), copy, lambda: _ask(self._model, "--draft", copy, "--drafter", "head")
                )
            case "settings":
                shutil.copytree(sound / "config", home / "config")
                return Case([home / "config" / "settings.toml"], home / "config", lambda: _ask(self._model))
            case "preset":
                shutil.copytree(sound / "config", home / "config")
                presets = home / "config" / "presets"
                return Case([presets / "mine.toml"], presets, lambda: _preset(presets))
            case "database":
                shutil.copytree(sound / "data", home / "data")
                file = home / "data" / "specchat.db"
                return Case([file], home / "data", lambda: _specchat("export", "--format", "json"), rewrites=True)
            case "trace":
                copy.mkdir()
                shutil.copy(sound / "trace.jsonl", copy)
                trace, picture = copy / "trace.jsonl", home / "picture.svg"
                return Case([trace], copy, lambda: _specchat("screenshot", trace, "--out", picture))
        raise ValueError(kind)


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
