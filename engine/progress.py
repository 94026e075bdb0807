"""Progress reports of long operations, also from the bars of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

Progress = Callable[[str, str, float | None], None]
"""Called with the stage (see `engine.events.Loading`), a short sentence for the user without a trailing full stop,
and the fraction done, 0 to 1, or None if unknown. It may raise to stop the work."""


def ignore_progress(stage: str, text: str, fraction: float | None) -> None:
    """Progress callback that does nothing."""


def size_text(count: float) -> str:
    """Bytes as text: 93 MB, 6.4 GB (powers of 1000)."""
    if count < 999_500:
        return f"{count / 1e3:.0f} kB"
    if count < 999_500_000:
        return f"{count / 1e6:.0f} MB"
    return f"{count / 1e9:.1f} GB"


def silence() -> None:
    """Switch off progress bars and warnings of huggingface_hub for this process."""
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]


def silence_transformers() -> None:
    """Switch off progress bars and warnings of transformers and huggingface_hub; imports transformers."""
    from transformers.utils import logging

    silence()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]


class ReportingBar:
    """Replacement for a tqdm bar: reports the fraction done, 0 to 1, and draws nothing. Other methods do nothing."""

    def __init__(self, items: Iterable[Any], report: Callable[[float], None]) -> None:
        self._items = items
        self._report = report

    def __iter__(self) -> Iterator[Any]:
        items = list(self._items)
        for number, item in enumerate(items):
            self._report(number / len(items))
            yield item

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_args, **_kwargs: None


@contextmanager
def transformers_bars(report: Callable[[float], None]) -> Iterator[None]:
    """Context manager: progress bars of transformers call `report` with the fraction done, 0 to 1."""
    from transformers.utils import logging

    def bar(_factory: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ReportingBar:
        return ReportingBar(args[0] if args else kwargs.get("iterable") or (), report)

    previous = logging.set_tqdm_hook(bar)
    try:
        yield
    finally:
        logging.set_tqdm_hook(previous)
