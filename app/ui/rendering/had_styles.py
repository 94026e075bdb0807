"""Names of the styles of `Had`, for widgets that show it."""

from __future__ import annotations

from specchat.app.chat.aligned_reply import Had

HAD_STYLES = {had: f"had--{had.value.lower().replace(' ', '-')}" for had in Had}
"""The component class of each."""
UNREAD, CURSOR, QUIET = "had--unread", "had--cursor", "had--quiet"
HAD_CLASSES = {*HAD_STYLES.values(), UNREAD, CURSOR, QUIET}
LETTERS = "A", "B"
"""What the two drafters are called."""
ALONE = Had.ONLY_A, Had.ONLY_B
"""What each has alone."""
