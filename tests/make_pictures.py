"""Make the README's pictures: the app saves them itself (ctrl+s), while a recorded trace plays.

Run from the repository: python -m tests.make_pictures. It replaces the files in assets/screenshots.
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
"""Of the second reply, so that all fates are on screen."""


async def picture(name: str, size: tuple[int, int], theme: str = "") -> None:
    """One picture: the second reply of the recorded chat, half way through."""
    from tests.app.stage import Stage

    with tempfile.TemporaryDirectory() as temporary:
        stage = Stage(Path(temporary), name="code", theme=theme)
        stage.chats("Sort a list in place", "Lisbon in spring", "A regex for dates")
        async with stage.app.run_test(size=size) as pilot:
            await stage.ready(pilot)
            await stage.answer(pilot, text=TURNS[0])
            await stage.answer(pilot, count=EVENTS, text=TURNS[1])
            await stage.press(pilot, "ctrl+s")
        (saved,) = Path(temporary).glob("*.svg")
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"{name}.svg").write_text(saved.read_text(encoding="utf-8"), encoding="utf-8")


def main() -> None:
    """Make every picture."""
    asyncio.run(picture("chat", (140, 40)))
    asyncio.run(picture("narrow", (80, 24)))
    asyncio.run(picture("light", (140, 40), theme="specchat-light"))


if __name__ == "__main__":
    main()
