"""Panes of a narrow terminal: keys go to what is on screen."""

from specchat.app.ui.widgets.chat_list import ChatList
from tests.app.stage import Stage
from tests.app.views import answered

NARROW = (80, 24)


async def test_after_a_dialog_over_the_panel_no_key_reaches_the_hidden_chats(stage: Stage) -> None:
    async with stage.after(answered, NARROW) as pilot:
        await stage.press(pilot, "ctrl+g", "ctrl+o", "escape")
        assert not isinstance(stage.app.focused, ChatList)
        await stage.press(pilot, "ctrl+g", "h", "i")
        assert stage.composer.text == "hi"
