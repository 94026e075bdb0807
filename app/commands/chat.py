"""`specchat`: the interface on a live engine."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from app.errors import StoreError, UsageError
from app.paths import database_file, models_folder, settings_file
from app.settings import Settings, load_settings

if TYPE_CHECKING:
    from app.duet import SideOptions
    from app.session import Session


def open_chat(options: Mapping[str, object], side: SideOptions | None = None) -> int:
    """Chat until the user leaves; returns the exit code. With `side`, begin side by side.

    Raises:
        UsageError: an option is out of range, or there is no terminal to draw on.
    """
    need_terminal("ask a question without the interface: specchat ask")
    settings, notice = load_settings(settings_file(), options)

    from app.duet import SideOptions, live_duet
    from app.probe import Probe
    from app.specchat import SpecChat

    wanted = side or SideOptions()
    if side is not None:
        side.pair(settings)
    app = SpecChat(
        lambda: prepare(settings, notice),
        theme=settings.theme,
        probe=Probe(),
        make_duet=lambda shared: live_duet(shared, wanted),
        begin_side_by_side=side is not None,
    )
    app.run()
    return app.return_code or 0


def prepare(settings: Settings, notice: str | None, database: Path | None = None) -> Session:
    """Open the store and make the engine, once the first frame is on screen.

    A store that cannot be opened is a notice: chatting works without it.
    """
    from app.session import Session
    from app.source import EngineSource
    from app.store import Store
    from engine import Engine

    notices = [notice]
    store = None
    try:
        store = Store(database or database_file())
        notices.append(store.notice)
    except StoreError as error:
        notices.append(str(error))
    source = EngineSource(Engine(settings.engine_config(models_folder())))
    return Session(source, settings, store, tuple(sentence for sentence in notices if sentence), settings_file())


def need_terminal(instead: str) -> None:
    """The interface draws on stdout and reads keys from stdin.

    Raises:
        UsageError: one of them is no terminal.
    """
    for name, stream in (("stdin", sys.stdin), ("stdout", sys.stdout)):
        if stream is None or not stream.isatty():
            raise UsageError(f"{name} is not a terminal, and the interface needs one: {instead}")
