"""The one exception type the engine raises on purpose: a sentence that says what is wrong and what to do."""

from __future__ import annotations


class EngineError(Exception):
    """A failure with a cause the user can act on.

    The message is one sentence that names the thing (file, option, model) and says what to do. Command lines print
    it on one line and exit with code 2; the app shows it as a notice.
    """
