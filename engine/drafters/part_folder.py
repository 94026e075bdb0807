"""Folders with a part of drafters: a file of tensors, and a card, which describes them in JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, bfloat16, nn

from specchat.engine.errors import check, errors_as, first_line
from specchat.engine.files import make_folder, replacing
from specchat.engine.models.disk import disk_errors

Card = TypeVar("Card")


class PartFolder(NamedTuple):
    """Layout of such folders."""

    noun: str
    """Name of the part in messages."""
    card: str
    tensors: str
    """Names of the two files."""
    command: str = "specchat distill"
    """Command that makes the part."""
    version: int = 1
    """Newest format that is known."""

    def write(self, folder: Path, tensors: Mapping[str, Tensor], card: Mapping[str, Any]) -> None:
        """Write a part into a folder, which is made if needed; the card comes last, so that its part is complete.

        Raises:
            EngineError: the disk is full, or cannot be written.
        """
        with disk_errors(folder, f"saving the {self.noun}"):
            make_folder(folder)
            with replacing(folder / self.tensors) as part:
                save_file(dict(tensors), part)
            with replacing(folder / self.card) as part:
                part.write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")

    def read_card(self, folder: Path, parse: Callable[..., Card]) -> Card:
        """The card, which `parse` makes from its fields.

        Raises:
            EngineError: there is no card, it is of a newer format, or `parse` cannot read it.
        """
        make = f"make the {self.noun} with {self.command}"
        with errors_as(
            lambda error: f"{folder} has no {self.noun} ({self.card}: {first_line(error)}): {make}",
            (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError),
        ):
            raw: dict[str, Any] = json.loads((folder / self.card).read_text(encoding="utf-8"))

            check(raw.pop("format") <= self.version, f"{folder} is of a newer specchat: update specchat")
            return parse(**raw)

    @contextmanager
    def reading(self, folder: Path) -> Iterator[dict[str, Tensor]]:
        """Context manager that gives the tensors by name, and turns what is raised about them into an EngineError."""
        path = folder / self.tensors
        again = f"make the {self.noun} again with {self.command}"
        with errors_as(
            lambda error: f"{path} is broken ({first_line(error)}): {again}",
            (OSError, SafetensorError, KeyError, RuntimeError, ValueError, TypeError, OverflowError),
        ):
            yield load_file(path)


def stored_weights(network: nn.Module) -> dict[str, Tensor]:
    """The weights of a network by name, as they are saved: in bfloat16."""
    return {name: weight.detach().to(bfloat16).contiguous().cpu() for name, weight in network.state_dict().items()}
