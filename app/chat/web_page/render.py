"""Puts style, data and script into one HTML file."""

from __future__ import annotations

import html
import json
from functools import cache
from pathlib import Path
from typing import Any

_PARTS = ("TITLE", "STYLE", "DATA", "SCRIPT")


def render(data: dict[str, Any]) -> str:
    """The file. Nothing in the data can end its script element, whatever a model said."""
    held = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")
    values = {"TITLE": html.escape(data["title"]), "STYLE": _file("page.css"), "SCRIPT": _file("page.js"), "DATA": held}
    page, rest = "", _file("page.html")
    for name in _PARTS:
        before, _, rest = rest.partition(f"@{name}@")
        page += before + values[name]
    return page + rest


@cache
def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text("utf-8")
