"""`specchat replay`: the interface on a recorded trace, with no model and no torch."""

from __future__ import annotations

from pathlib import Path

from specchat.app.cli.commands.chat import need_terminal, pictures
from specchat.app.paths import settings_file
from specchat.app.settings.settings_file import load_settings
from specchat.engine import EngineError, read_trace


def open_replay(file: Path) -> int:
    """Play the trace until the user leaves; returns the exit code.

    Raises:
        EngineError: the file is missing, damaged, or holds nothing to play.
        UsageError: there is no terminal to draw on.
    """
    records = list(read_trace(file))
    if not records:
        raise EngineError(f"{file} holds no records: there is nothing to play")
    need_terminal("a replay is drawn on it")
    settings, notice = load_settings(settings_file())

    from specchat.app.chat.session import Session
    from specchat.app.sources.player import Player
    from specchat.app.sources.probe import Probe
    from specchat.app.ui.app import SpecChat

    player = Player(records, file.name)
    session = Session(player, notices=(notice,) if notice else (), settings_file=settings_file())
    app = SpecChat(lambda: session, player=player, theme=settings.theme, pictures=pictures(settings), probe=Probe())
    app.run()
    return app.return_code or 0
