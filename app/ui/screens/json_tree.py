"""The JSON of a reply as a tree."""

import json
from typing import Any

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static, Tree
from textual.widgets.tree import TreeNode

from specchat.app.chat.reply import Reply
from specchat.app.sanitize import escape_controls
from specchat.app.ui.keys import registered
from specchat.app.ui.screens.dialogs import Dialog, framed

_LIVE_S = 0.25
_DEEPEST = 50
"""Levels of the tree; what is deeper is in the value below it."""


class JsonScreen(Dialog[None]):
    """Shows the text of a reply until it is complete, then the tree of its values, and all of the selected one.

    Args:
        reply: whose text is JSON, or becomes it.
    """

    BINDINGS = registered("tree", Binding("escape,v,q", "dismiss", "close", key_display="esc"))

    def __init__(self, reply: Reply) -> None:
        super().__init__(classes="dialog")
        self._reply = reply
        self._tree: Tree[Any] = Tree("reply", id="json-tree")

    def compose(self) -> ComposeResult:
        """The text, or the tree above the selected value."""
        with framed(Vertical(id="json"), "reply as a tree", "esc closes"):
            yield VerticalScroll(Static(id="json-text"), id="json-partial")
            yield self._tree
            yield Static(id="json-value")

    def on_mount(self) -> None:
        """Show what there is, and what is added."""
        self._show()
        self.set_interval(_LIVE_S, self._show)

    def _show(self) -> None:
        if self.has_class("-complete"):
            return
        try:
            value = read_json(self._reply)
        except ValueError:
            self.query_one("#json-text", Static).update(Content(escape_controls(self._reply.text)))
            return
        self.add_class("-complete")
        self.query_one("#json").border_subtitle = "space folds · esc closes"
        _add(self._tree.root, "reply", value)
        self._tree.root.expand_all()
        self._tree.focus()

    def on_tree_node_highlighted(self, event: Tree.NodeHighlighted[Any]) -> None:
        """Show all of the selected value, which may be longer than a line."""
        value = event.node.data
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        self.query_one("#json-value", Static).update(Content(escape_controls(text)))


def read_json(reply: Reply) -> Any:
    """The value that a reply's text is.

    Raises:
        ValueError: it is none, as it is still being written, was cut off, or is other text.
    """
    if reply.running:
        raise ValueError
    try:
        return json.loads(reply.text)
    except RecursionError:
        raise ValueError from None


def _add(node: TreeNode[Any], name: str, value: Any, depth: int = 0) -> None:
    """Make a node that of a value, with a node for each part of it."""
    parts: list[tuple[Any, Any]] = []
    shown = json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict | list):
        parts = [*(value.items() if isinstance(value, dict) else enumerate(value))]
        shown = f"{shown[0]}{len(value)}{shown[-1]}"
    named = escape_controls(name).replace("\n", "␊")
    node.set_label(Text.assemble((named, "bold"), "  ", (escape_controls(shown), "dim" if parts else "")))
    node.data, node.allow_expand = value, bool(parts) and depth < _DEEPEST
    for key, part in parts if depth < _DEEPEST else ():
        _add(node.add(""), str(key), part, depth + 1)
