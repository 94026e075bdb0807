"""`specchat` and `specchat replay`: the interface on a live engine, or on a recorded trace."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specchat.app.errors import StoreError, UsageError
from specchat.app.paths import database_file, kept_folder, settings_file, state_folder
from specchat.app.settings.settings import Settings
from specchat.app.settings.settings_file import load_settings
from specchat.engine import EngineError, models_folder, read_trace

SWITCH_S = 0.0005
"""Python's thread switch interval: how long drawing may delay the engine after a pass. The default is 5 ms."""

if TYPE_CHECKING:
    from specchat.app.chat.request_manager import Session
    from specchat.app.side_by_side.duet import Duet, SideOptions
    from specchat.app.sources.source import Source
    from specchat.app.storage.store import Store


def open_chat(options: Mapping[str, object], side: SideOptions | None = None, attach: str | None = None) -> int:
    """Chat until the user leaves; returns the exit code.

    Args:
        options: options of the settings that were given.
        side: begin side by side with these setups.
        attach: address of a server to use instead of an engine.

    Raises:
        UsageError: an option is out of range, or there is no terminal.
    """
    need_terminal("ask a question without the interface: specchat ask")
    settings, notice = load_settings(settings_file(), options, profiled=attach is None)

    sys.setswitchinterval(SWITCH_S)

    from specchat.app.sources.probe import Probe
    from specchat.app.ui.app import SpecChat
    from specchat.app.ui.event_loop import run_app

    if side is not None:
        side.pair(settings)
    model = None if side is not None else options.get("target")
    """The server's model. Side by side, `--target` is the model of the lane on this machine."""
    source = None
    if attach:
        from specchat.app.cli.commands.ask import attached

        source = attached(attach, model)
    app = SpecChat(
        lambda: prepare(settings, notice, source),
        theme=settings.theme,
        pictures=pictures(settings),
        probe=Probe(),
        make_source=None if source is not None else _engine,
        make_duet=duets(side, attach, model, options),
        begin_side_by_side=side is not None,
    )
    run_app(app)
    return app.return_code or 0


def duets(
    side: SideOptions | None, url: str | None, model: object, options: Mapping[str, object]
) -> Callable[[Settings], Duet]:
    """A factory of duets: two lanes on this machine, or one and the model of this name at a server."""
    own = options if model is None else {**options, "target": None}
    here = load_settings(settings_file(), own)[0] if url else Settings()

    def make(shared: Settings) -> Duet:
        from specchat.app.cli.commands.ask import attached
        from specchat.app.side_by_side.duet import SideOptions, attached_duet, live_duet

        wanted = side or SideOptions()
        if url is None:
            return live_duet(shared, wanted)
        return attached_duet(replace(shared, target=here.target), wanted, attached(url, model))

    return make


def open_replay(file: Path) -> int:
    """Play a trace until the user leaves; returns the exit code.

    Raises:
        EngineError: the file is missing, damaged, or empty.
        UsageError: there is no terminal.
    """
    records = list(read_trace(file))
    if not records:
        raise EngineError(f"{file} holds no records: there is nothing to play")
    need_terminal("a replay is drawn on it")
    settings, notice = load_settings(settings_file())

    from specchat.app.chat.request_manager import Session
    from specchat.app.sources.player import Player
    from specchat.app.sources.probe import Probe
    from specchat.app.ui.app import SpecChat

    player = Player(records, file.name)
    session = Session(player, notices=(notice,) if notice else (), settings_file=settings_file())
    app = SpecChat(lambda: session, player=player, theme=settings.theme, pictures=pictures(settings), probe=Probe())
    app.run()
    return app.return_code or 0


def pictures(settings: Settings) -> Path | None:
    """The settings' folder for pictures and exports."""
    return Path(settings.exports).expanduser() if settings.exports else None


def prepare(settings: Settings, notice: str | None, engine: Source | None) -> Session:
    """Open the store and make the engine, unless one is given, or a model must be downloaded, which the app asks first.

    Called after the first frame is on screen.
    """
    from specchat.app.chat.request_manager import Session
    from specchat.app.sources.source import NoSource
    from specchat.engine.models import is_installed

    store, notices = open_store(notice)
    source = engine or (_engine(settings) if is_installed(settings.engine_config(models_folder())) else NoSource())
    return Session(source, settings, store, notices, settings_file(), attached=engine is not None)


def _engine(settings: Settings) -> Source:
    from specchat.engine import Engine

    kept = kept_folder(database_file()) if settings.keep_cache == "on" else None
    return Engine(settings.engine_config(models_folder(), state_folder() / "drafters.json", kept))


def open_store(notice: str | None, now: Callable[[], float] = time.time) -> tuple[Store | None, tuple[str, ...]]:
    """The store, and the sentences to show at the start, `notice` first.

    If the store cannot be opened, it is None and a sentence says why: chatting works without it.
    """
    from specchat.app.storage.store import Store

    said = [notice]
    store = None
    try:
        store = Store(database_file(), now)
        said.append(store.notice)
    except StoreError as error:
        said.append(str(error))
    return store, tuple(sentence for sentence in said if sentence)


def need_terminal(instead: str) -> None:
    """Check that stdin and stdout are a terminal.

    Raises:
        UsageError: one of them is not; `instead` says what to do.
    """
    if "TEXTUAL_DRIVER" in os.environ:  # textual-serve: the browser is the terminal
        return
    for name, stream in (("stdin", sys.stdin), ("stdout", sys.stdout)):
        if stream is None or not stream.isatty():
            raise UsageError(f"{name} is not a terminal, and the interface needs one: {instead}")
