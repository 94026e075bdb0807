"""The one exception type the engine raises on purpose: a sentence that says what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Iterable


class EngineError(Exception):
    """A failure with a cause the user can act on.

    The message is one sentence that names the thing (file, option, model) and says what to do. Command lines print
    it on one line and exit with code 2; the app shows it as a notice.
    """


def unknown_drafter(name: str, known: Iterable[str]) -> str:
    """The sentence for a drafter that the loaded models do not have."""
    hint = {"model": " (it needs --draft)", "head": " (make one with specchat distill)"}.get(name, "")
    return f"drafter {name!r} is not there{hint}: choose one of auto, {', '.join(known)}"
