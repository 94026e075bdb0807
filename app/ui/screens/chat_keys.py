"""The keys of the chat screen."""

from __future__ import annotations

from textual.binding import Binding

CHAT_KEYS = (
    # Priority where the composer has other plans for a key; letters work where nothing is typed.
    Binding("f6", "inspect", "inspect", priority=True),
    Binding("i", "inspect", "Inspect", show=False),
    Binding("ctrl+l,l", "timeline", "rounds", key_display="^l"),
    Binding("f7", "step", "step", priority=True),
    Binding("n", "step", "Step", show=False),
    Binding("f10,p", "hold", "Pause", show=False),
    Binding("ctrl+f", "by_round", "Figure 1", show=False, priority=True),
    Binding("f", "by_round", "Figure 1", show=False),
    Binding("f12,d", "app.definitions", "figures", key_display="f12", show=False),
    Binding("left", "scrub(-1)", "back", show=False),
    Binding("right", "scrub(1)", "forward", show=False),
    Binding("comma", "step_back", "round back", show=False),
    Binding("full_stop", "step", "next part of the round", show=False),
    Binding("x", "to_rejection", "next rejection", show=False),
    Binding("ctrl+k", "app.search", "search", key_display="^k", show=False, priority=True),
    Binding("ctrl+e", "app.messages", "messages", key_display="^e", show=False, priority=True),
    Binding("alt+e", "app.editor", "editor", show=False, priority=True),
    Binding("alt+a", "app.attachments", "attachments", show=False, priority=True),
    Binding("alt+c", "app.context", "context", show=False, priority=True),
    Binding("escape", "cancel_edit", "no edit", key_display="esc"),
    Binding("escape", "back", "back", key_display="esc"),
    Binding("escape", "stop", "stop", key_display="esc"),
    Binding("space", "hold", "pause", show=False),
    Binding("plus,equals_sign", "faster(1)", "faster", key_display="+"),
    Binding("minus", "faster(-1)", "slower", key_display="−"),
    Binding("r", "again", "again"),
    Binding("ctrl+n", "new_chat", "new", key_display="^n"),
    Binding("ctrl+b,f2", "pane('chats')", "chats", key_display="^b"),
    Binding("ctrl+g,f3", "pane('panel')", "panel", key_display="^g"),
    Binding("ctrl+r,f4", "rejected", "rejected", key_display="^r"),
    Binding("ctrl+t,f5", "markdown", "Markdown", show=False),
    Binding("ctrl+y", "app.side_by_side", "Side by side", show=False, priority=True),
    Binding("f11", "app.side_by_side", "side by side", key_display="^y"),
    Binding("f1,question_mark", "app.help", "help", key_display="f1"),
    Binding("ctrl+o,f9", "app.controls", "controls", key_display="^o"),
    Binding("f8", "app.copy", "Copy", show=False),
    Binding("ctrl+s", "app.save_picture", "Save the screen", show=False),
)
REPLAY_ACTIONS = frozenset(("faster", "again", "scrub", "step_back", "to_rejection"))
"""Actions of a replay only."""
