"""Make the README's pictures: the app saves them itself (alt+p), from recorded traces.

Run from the repository: python -m scripts.make_pictures. It replaces the files in assets/screenshots.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

os.environ["TEXTUAL_ANIMATIONS"] = "none"  # read when textual is imported
os.environ.pop("NO_COLOR", None)

FOLDER = Path(__file__).parent.parent / "assets" / "screenshots"
TURNS = ("Write a Python class Stack with push, pop and peek.", "Rename the class to Pile and keep everything else.")
EVENTS = 30
"""Rounds of the second reply, so that all fates are on screen."""


async def picture(name: str, size: tuple[int, int], view: str, theme: str = "") -> None:
    """One picture: the second reply of the recorded chat, half way through."""
    from tests.app.stage import Stage

    with tempfile.TemporaryDirectory() as temporary:
        stage = Stage(Path(temporary), name="usual", theme=theme, view=view)
        stage.chats("Sort a list in place", "Lisbon in spring", "A regex for dates")
        async with stage.app.run_test(size=size) as pilot:
            await stage.ready(pilot)
            await stage.answer(pilot, text=TURNS[0])
            await stage.answer(pilot, count=EVENTS, text=TURNS[1])
            await stage.press(pilot, "alt+p")
        _keep(Path(temporary), name)


async def closely() -> None:
    """The inspector on a rejected token, above the timeline."""
    from tests.app.views import Replay

    with tempfile.TemporaryDirectory() as temporary:
        replay = Replay("detail", pictures=Path(temporary))
        async with replay.app.run_test(size=(140, 40)) as pilot:
            await replay.at(pilot, 0.7)
            await replay.press(pilot, "x", "f6", "alt+p")
        _keep(Path(temporary), "inspector")


async def side_by_side() -> None:
    """Both lanes when they are done."""
    from tests.app.side_stage import SideStage

    with tempfile.TemporaryDirectory() as temporary:
        stage = SideStage(Path(temporary))
        async with stage.app.run_test(size=(140, 40)) as pilot:
            await stage.ready(pilot)
            await stage.send(pilot)
            await stage.give(pilot, None, None)
            await stage.press(pilot, "alt+p")
        _keep(Path(temporary), "side-by-side")


def _keep(folder: Path, name: str) -> None:
    (saved,) = folder.glob("*.svg")
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.svg").write_text(saved.read_text(encoding="utf-8"), encoding="utf-8")


def main() -> None:
    """Make every picture."""
    asyncio.run(picture("chat", (140, 40), "chat"))
    asyncio.run(picture("narrow", (80, 24), "chat"))
    asyncio.run(picture("watch", (140, 40), "watch"))
    asyncio.run(picture("light", (140, 40), "chat", theme="specchat-light"))
    asyncio.run(picture("watch-light", (140, 40), "watch", theme="specchat-light"))
    asyncio.run(closely())
    asyncio.run(side_by_side())


if __name__ == "__main__":
    main()
