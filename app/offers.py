"""What the command palette offers, for the state the app is in."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from textual.app import SystemCommand

from app.duet import SIDES
from app.screens.chat import ChatScreen
from app.screens.side_by_side import SideScreen
from app.widgets.chat_list import ChatList

if TYPE_CHECKING:
    from app.specchat import SpecChat


def offers(app: SpecChat, screen: ChatScreen, *, replaying: bool) -> Iterator[SystemCommand]:
    """The commands that would do something now."""
    if not replaying:
        yield from _of_chats(app, screen)
        yield SystemCommand("Controls", "γ, drafter, temperature and the others, and presets", app.action_controls)
        yield SystemCommand(
            "Several replies",
            "Ask for 2 to 8 replies to one prompt",
            lambda: screen.put(f"/candidates 4 {screen.unsent}"),
        )
        if any(turn.wanted > 1 for turn in screen.conversation.turns):
            yield SystemCommand("Pick a reply", "Show the several replies of this chat again", app.action_candidates)
        for name in app.presets:
            yield SystemCommand(f"Preset {name}", "Set all controls as they were saved", partial(app.use_preset, name))
    if screen.conversation.turns:
        yield SystemCommand("Copy", "The last reply, a code block, or the chat", app.action_copy)
        for form, what in (("md", "Markdown"), ("json", "JSON, with every round"), ("svg", "a picture of all of it")):
            yield SystemCommand(f"Export {form}", f"Write the chat as {what}", partial(app.export, form))
    if app.side.offered:
        yield SystemCommand("Side by side", "One prompt in two set-ups, fairly timed", app.action_side_by_side)
    yield SystemCommand("Panel", "Show or fold the speculation panel", lambda: screen.action_pane("panel"))
    yield SystemCommand("Rejected tokens", "Hide or show rejected and discarded tokens", screen.action_rejected)
    yield SystemCommand("Inspector", "Look at tokens: p, q, the draw, the verdict", screen.action_inspect)
    yield SystemCommand("Timeline", "Rounds on a line of time", screen.action_timeline)
    yield SystemCommand("Figure 1", "One round per line, as in the paper; or running text", screen.action_by_round)
    yield SystemCommand("Pause", "Pause between rounds, or go on", screen.action_hold)
    yield SystemCommand("Step", "The next part of a round", screen.action_step)
    yield SystemCommand("Figures", "What each figure means", app.action_definitions)
    yield SystemCommand("Markdown", "Finished replies as Markdown, or token by token", screen.action_markdown)
    yield SystemCommand("Save picture", "Save the screen as an SVG file", app.action_save_picture)
    yield SystemCommand("Theme", "Change the colours", app.action_change_theme)
    yield SystemCommand("Help", "Keys, and what the colours mean", app.action_help)
    yield SystemCommand("Quit", "Everything is stored", app.exit)


def offers_side_by_side(app: SpecChat, screen: SideScreen) -> Iterator[SystemCommand]:
    """The same for that mode."""
    if screen.check_action("go_on", ()):
        for side, name in enumerate(SIDES):
            yield SystemCommand(
                f"Go on from the {name}",
                "Back to the chat with this lane's conversation",
                partial(screen.action_go_on, side),
            )
    if screen.check_action("stop", ()):
        yield SystemCommand("Stop", "End both replies and keep their texts", screen.action_stop)
    else:
        yield SystemCommand("Leave", "Back to the chat; both conversations are stored", screen.action_leave)
    yield SystemCommand("Rejected tokens", "Hide or show rejected and discarded tokens", screen.action_rejected)
    yield SystemCommand("Markdown", "Finished replies as Markdown, or token by token", screen.action_markdown)
    yield SystemCommand("Save picture", "Save the screen as an SVG file", app.action_save_picture)
    yield SystemCommand("Theme", "Change the colours", app.action_change_theme)
    yield SystemCommand("Help", "Keys, and how the clocks count", screen.action_how)
    yield SystemCommand("Quit", "Everything is stored", app.exit)


def _of_chats(app: SpecChat, screen: ChatScreen) -> Iterator[SystemCommand]:
    chat = screen.conversation.chat
    yield SystemCommand("New chat", "Begin an empty chat", screen.action_new_chat)
    yield SystemCommand("Chats", "Show or fold the list of chats", lambda: screen.action_pane("chats"))
    if chat is not None:
        yield SystemCommand(
            "Rename chat", "Give this chat another title", lambda: app.post_message(ChatList.RenameWanted(chat))
        )
        yield SystemCommand(
            "Delete chat", "Take this chat off the list", lambda: app.post_message(ChatList.DeleteWanted(chat))
        )
    if app.can_undo:
        yield SystemCommand("Undo delete", "Bring the last deleted chat back", app.action_undo_delete)
    if screen.conversation.running:
        yield SystemCommand("Stop", "End the reply and keep its text", screen.action_stop)
