"""What every group of actions acts on."""

from __future__ import annotations

from dataclasses import dataclass

from textual.app import App

from specchat.app.chat.archive import Archive
from specchat.app.chat.request_manager import RequestManager
from specchat.app.ui.actions.engine_offer import EngineOffer
from specchat.app.ui.screens.chat import ChatScreen


@dataclass
class ActionScope:
    """The app and the parts of it that actions read and change; one for all of them."""

    app: App[None]
    """Shows screens and notices, and runs the workers."""
    screen: ChatScreen
    """Shows the conversation; it stays below all other screens."""
    requests: RequestManager
    """Sends prompts and stops replies; has the settings that the next request is made with."""
    offer: EngineOffer
    """What the engine that is loaded has to offer."""
    archive: Archive | None = None
    """None where nothing is stored."""
