"""A recorded trace as an object, which a notebook shows as a page that replays it."""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from specchat.app.chat.perfetto import as_perfetto
from specchat.app.chat.web_page.data import trace_data
from specchat.app.chat.web_page.render import render
from specchat.engine import Record, read_trace


class Trace:
    """Records of a trace, in order.

    Args:
        records: as `engine.read_trace` gives them.
        name: what it is called.
    """

    def __init__(self, records: Iterable[Record], name: str = "trace") -> None:
        self.records = tuple(records)
        self.name = name

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """Read a trace file.

        Raises:
            EngineError: it cannot be read, or is none.
        """
        file = Path(path)
        return cls(read_trace(file), file.name)

    def page(self) -> str:
        """One HTML file that replays it."""
        return render(trace_data(self.records, self.name))

    def perfetto(self) -> str:
        """A Chrome trace."""
        return as_perfetto(self.records, self.name)

    def __repr__(self) -> str:
        return f"Trace({self.name!r}, {len(self.records)} records)"

    def _repr_html_(self) -> str:
        """The page in a frame of its own, so that neither page nor notebook can disturb the other."""
        page = html.escape(self.page(), quote=True)
        style = "width:100%;height:32rem;border:1px solid #8884;border-radius:6px"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'
