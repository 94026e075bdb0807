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
    Binding("f12,d", "app.open('definitions')", "figures", key_display="f12", show=False),
    Binding("left", "replay('scrub', -1)", "replay back", show=False),
    Binding("right", "replay('scrub')", "replay forward", show=False),
    Binding("comma", "replay('step_back')", "round back", show=False),
    Binding("full_stop", "step", "step", show=False),
    Binding("x", "replay('to_rejection')", "next rejection", show=False),
    Binding("ctrl+k", "app.open('search')", "search", key_display="^k", show=False, priority=True),
    Binding("alt+j,apostrophe", "jump", "jump", show=False),
    Binding("ctrl+e", "app.open('messages')", "messages", key_display="^e", show=False, priority=True),
    Binding("escape", "cancel_edit", "no edit", key_display="esc"),
    Binding("escape", "back", "back", key_display="esc"),
    Binding("escape", "stop", "stop", key_display="esc"),
    Binding("space", "hold", "pause", show=False),
    Binding("plus,equals_sign", "replay('faster')", "faster", key_display="+"),
    Binding("minus", "replay('faster', -1)", "slower", key_display="−"),
    Binding("r", "replay('again')", "again"),
    Binding("ctrl+n", "new_chat", "new", key_display="^n"),
    Binding("ctrl+b,f2", "pane('chats')", "chats", key_display="^b"),
    Binding("ctrl+g,f3", "pane('panel')", "panel", key_display="^g"),
    Binding("ctrl+r,f4", "rejected", "rejected", key_display="^r"),
    Binding("ctrl+t,f5", "markdown", "Markdown", show=False),
    Binding("ctrl+y", "app.open('side_by_side')", "Side by side", show=False, priority=True),
    Binding("f11", "app.open('side_by_side')", "side by side", key_display="^y"),
    Binding("f1", "app.open('help')", "help", key_display="f1"),
    Binding("question_mark", "app.open('keys')", "keys", show=False),
    Binding("ctrl+o,f9", "app.open('controls')", "controls", key_display="^o"),
    Binding("f8", "app.open('copy')", "Copy", show=False),
    Binding("ctrl+s", "app.open('save_picture')", "Save the screen", show=False),
)
