"""Keeps the end of a growing scroll view in sight, until the user scrolls away from it."""

from __future__ import annotations

from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.widget import Widget


class EndFollower:
    """Scrolls one view to its end while `following` holds."""

    def __init__(self, view: ScrollView) -> None:
        self.following = True
        self._view = view
        self._moving = False
        """Whether it is not the user who scrolls."""

    def grow(self, size: Size) -> None:
        """Set the size of the content, and keep its end in sight.

        Textual lays the whole screen out anew when `virtual_size` changes; only a scrollbar that comes or goes is
        worth it. Without this, each new line of a reply would cost as much as thirty drawn ones.
        """
        view, room = self._view, self._view.container_size.height
        self._moving = True
        if (view.virtual_size.height > room) is (size.height > room):
            view.set_reactive(Widget.virtual_size, size)
            if view.show_vertical_scrollbar:
                view.vertical_scrollbar.window_virtual_size, view.vertical_scrollbar.window_size = size.height, room
            view.scroll_y = view.validate_scroll_y(view.scroll_y)
        else:
            view.virtual_size = size
        self._moving = False
        self.keep_end()

    def keep_end(self) -> None:
        """Scroll to the end, if it is followed."""
        if self.following:
            self._moving = True
            # Forced: the scrollbar that would allow it is there only after the next layout.
            self._view.scroll_end(animate=False, immediate=True, force=True, x_axis=False)
            self._moving = False

    def scrolled(self) -> None:
        """The view has moved: a user who scrolls to the end follows it, one who scrolls away does not."""
        if not self._moving:
            self.following = self._view.is_vertical_scroll_end
