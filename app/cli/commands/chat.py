"""`specchat`: the interface on a live engine."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specchat.app.errors import StoreError, UsageError
from specchat.app.paths import database_file, settings_file
from specchat.app.settings.settings import Settings
from specchat.app.settings.settings_file import load_settings
from specchat.engine import models_folder

SWITCH_S = 0.0005
"""How long drawing may keep Python from the engine, whose pass has ended; by default it is ten times as long."""

if TYPE_CHECKING:
    from specchat.app.chat.session import Session
    from specchat.app.side_by_side.duet import Duet, SideOptions
    from specchat.app.sources.source import Source
    from specchat.app.storage.store import Store


def open_chat(options: Mapping[str, object], side: SideOptions | None = None, attach: str | None = None) -> int:
    """Chat until the user leaves; returns the exit code. With `side`, begin side by side; `attach` names a server.

    Raises:
        UsageError: an option is out of range, or there is no terminal to draw on.
    """
    need_terminal("ask a question without the interface: specchat ask")
    settings, notice = load_settings(settings_file(), options)

    sys.setswitchinterval(SWITCH_S)

    from specchat.app.cli.commands.ask import attached
    from specchat.app.side_by_side.duet import SideOptions
    from specchat.app.sources.probe import Probe
    from specchat.app.ui.app import SpecChat
    from specchat.app.ui.event_loop import run_app

    wanted = side or SideOptions()
    if side is not None:
        side.pair(settings)
    model = None if side is not None else options.get("target")
    """The server's, by name. Begun side by side, `--target` is of the lane here."""
    source = attached(attach, model) if attach else None
    app = SpecChat(
        lambda: prepare(settings, notice, engine=source),
        theme=settings.theme,
        pictures=pictures(settings),
        probe=Probe(),
        make_source=None if source is not None else _engine,
        make_duet=beside(attach, model, options, wanted) if attach else partial(_both_here, wanted),
        begin_side_by_side=side is not None,
    )
    run_app(app)
    return app.return_code or 0


def _both_here(wanted: SideOptions, shared: Settings) -> Duet:
    from specchat.app.side_by_side.duet import live_duet

    return live_duet(shared, wanted)


def beside(url: str, model: object, options: Mapping[str, object], wanted: SideOptions) -> Callable[[Settings], Duet]:
    """Makes duets of a lane here and the server of this address, asked for its model of this name."""
    from specchat.app.cli.commands.ask import attached
    from specchat.app.side_by_side.attached_duet import attached_duet

    own = options if model is None else {**options, "target": None}
    here, _ = load_settings(settings_file(), own)
    return lambda shared: attached_duet(replace(shared, target=here.target), wanted, attached(url, model))


def pictures(settings: Settings) -> Path | None:
    """The folder for pictures and exports that the settings name."""
    return Path(settings.exports).expanduser() if settings.exports else None


def prepare(
    settings: Settings, notice: str | None, database: Path | None = None, engine: Source | None = None
) -> Session:
    """Open the store and make the engine (unless there is one), once the first frame is on screen."""
    from specchat.app.chat.session import Session

    store, notices = open_store(notice, database)
    source = engine or _engine(settings)
    return Session(source, settings, store, notices, settings_file(), attached=engine is not None)


def _engine(settings: Settings) -> Source:
    from specchat.engine import Engine

    return Engine(settings.engine_config(models_folder()))


def open_store(
    notice: str | None, database: Path | None = None, now: Callable[[], float] = time.time
) -> tuple[Store | None, tuple[str, ...]]:
    """The chats, and the sentences to show at the start, `notice` first.

    A store that cannot be opened is such a sentence: chatting works without it.
    """
    from specchat.app.storage.store import Store

    said = [notice]
    store = None
    try:
        store = Store(database or database_file(), now)
        said.append(store.notice)
    except StoreError as error:
        said.append(str(error))
    return store, tuple(sentence for sentence in said if sentence)


def need_terminal(instead: str) -> None:
    """The interface draws on stdout and reads keys from stdin.

    Raises:
        UsageError: one of them is no terminal.
    """
    if "TEXTUAL_DRIVER" in os.environ:  # textual-serve: the browser is the terminal
        return
    for name, stream in (("stdin", sys.stdin), ("stdout", sys.stdout)):
        if stream is None or not stream.isatty():
            raise UsageError(f"{name} is not a terminal, and the interface needs one: {instead}")
