"""The list of chats: titles within the width."""

from pathlib import Path

from specchat.app.ui.widgets.chat_list import ChatList
from tests.app.stage import Stage
from tests.app.views import WIDE


def lines(stage: Stage) -> list[str]:
    """The visible lines of the list."""
    chats = stage.app.screen.query_one(ChatList)
    return [chats.render_line(y).text.rstrip() for y in range(chats.scrollable_content_region.height)]


async def test_titles_of_forks_differ_and_their_ends_are_visible(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.started(WIDE, events=None) as pilot:
        for _ in range(2):
            await stage.send(pilot, "/fork")
        assert [line.split("…")[1].split()[:2] for line in lines(stage)[:2]] == [["(fork", "2)"], ["(fork)", "now"]]
