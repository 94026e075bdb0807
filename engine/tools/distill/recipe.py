"""What a kind of draft that is trained consists of: what it reads, what is trained, what becomes of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from specchat.engine.config import EngineConfig
from specchat.engine.tools.distill.batch import Batch
from specchat.engine.tools.distill.beginning import Beginning
from specchat.engine.tools.distill.corpus import Conversation
from specchat.engine.tools.distill.distilled import Distilled
from specchat.engine.tools.distill.objective import Agreement
from specchat.engine.worker.assembly import Assembly


class Trainee(Protocol):
    """Something that is trained for one target."""

    @property
    def network(self) -> nn.Module:
        """Its weights, in float32 on the target's device."""

    @property
    def rate(self) -> float:
        """Peak learning rate."""

    @property
    def four_bits(self) -> bool:
        """Whether its linear layers become 4-bit codes beside a quantised target, and are trained for that."""

    def loss(self, batch: Batch) -> tuple[Tensor, list[Agreement]]:
        """The loss on a batch, and the agreement with the target at each drafted position."""

    def assemble(self, config: EngineConfig) -> Assembly:
        """An engine's parts with it beside the target that is loaded."""

    def save(self, folder: Path, made: Distilled, fingerprint: str) -> None:
        """Write it so that `--draft` loads it.

        Args:
            folder: made if it is not there.
            made: what to say about it.
            fingerprint: of the target.

        Raises:
            EngineError: the disk is full, or not to be written.
        """


class Recipe(Protocol):
    """A kind of draft that is trained, for one target.

    Its constructor takes the target (`LoadedModel`) and raises `EngineError` where this kind cannot be made for it.
    """

    @property
    def noun(self) -> str:
        """What it makes, with its article."""

    @property
    def drafter(self) -> str:
        """Name of the drafter that it is evaluated with."""

    @property
    def taps(self) -> tuple[int, ...]:
        """Depths of the target's hidden states that the training reads, the last one last."""

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files that a finished draft consists of."""

    def beginning(self, folder: Path) -> Beginning:
        """A finished draft, to be trained further.

        Raises:
            EngineError: it was made for another target or has other sizes, or the folder is broken.
        """

    def trainee(self, vocabulary: Tensor, talks: Iterable[Conversation] | None) -> Trainee:
        """What is trained.

        Args:
            vocabulary: [V'], int64: the tokens that it drafts.
            talks: text to begin with; None where its weights are about to be given.
        """
