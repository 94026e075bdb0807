"""The list of chats: titles and times within the width."""

from pathlib import Path

from specchat.app.ui.widgets.chat_list import ChatList
from tests.app.stage import Stage
from tests.app.views import WIDE


def lines(stage: Stage) -> list[str]:
    """The visible lines of the list."""
    chats = stage.app.screen.query_one(ChatList)
    return [chats.render_line(y).text.rstrip() for y in range(chats.scrollable_content_region.height)]


async def test_times_stay_when_the_list_begins_to_scroll(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.chats(*(f"A chat with a title that is cut, number {number}" for number in range(37)))
    async with stage.started(WIDE, "ctrl+b", "d") as pilot:
        assert not stage.app.screen.query_one(ChatList).show_vertical_scrollbar
        await stage.press(pilot, "u")
        assert stage.app.screen.query_one(ChatList).show_vertical_scrollbar
        assert all(line.endswith(("d", "w")) for line in lines(stage)), lines(stage)


async def test_titles_of_forks_differ_and_their_ends_are_visible(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.started(WIDE, events=None) as pilot:
        for _ in range(2):
            await stage.send(pilot, "/fork")
        assert [line.split("…")[1].split()[:2] for line in lines(stage)[:2]] == [["(fork", "2)"], ["(fork)", "now"]]
