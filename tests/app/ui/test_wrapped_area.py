"""What is typed is drawn as it is wrapped, also after a change of size."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from textual.app import App, ComposeResult
from textual.widgets import TextArea

from specchat.app.ui.widgets.composer import Composer, WrappedArea


class Host(App[None]):
    """A text area that is as wide as the terminal."""

    def __init__(self, area: TextArea) -> None:
        super().__init__()
        self.area = area

    def compose(self) -> ComposeResult:
        yield self.area


@pytest.mark.parametrize("make", [Composer, partial(WrappedArea, compact=True)], ids=["composer", "form"])
async def test_a_text_is_wrapped_anew_when_the_width_changes(make: Callable[[], TextArea]) -> None:
    host = Host(make())
    async with host.run_test(size=(80, 10)) as pilot:
        host.area.load_text("x" * 300)
        for width in (80, 77, 70, 90, 79):
            await pilot.resize_terminal(width, 10)
            await pilot.pause()
            drawn = [strip.text.strip() for strip in host.area.render_lines(host.area.size.region)]
            assert [line for line in drawn if line] == host.area.wrapped_document.get_sections(0)
