"""Silences progress bars and warnings of huggingface_hub and transformers, or redirects them to our progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


def silence() -> None:
    """Switch off the hub's and transformers' progress bars and warnings for this process."""
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]


def silence_transformers() -> None:
    """As `silence`, and transformers' own logger too; imports transformers."""
    from transformers.utils import logging

    silence()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]


class Counted:
    """A tqdm stand-in that draws nothing and reports the fraction done, 0 to 1. Other tqdm methods do nothing."""

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

    def bar(_factory: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Counted:
        return Counted(args[0] if args else kwargs.get("iterable") or (), report)

    previous = logging.set_tqdm_hook(bar)
    try:
        yield
    finally:
        logging.set_tqdm_hook(previous)
