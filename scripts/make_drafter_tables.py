"""Writes the tables of drafters in `docs/models.md`, from the registry.

Run: python -m scripts.make_drafter_tables
"""

from __future__ import annotations

from pathlib import Path

from specchat.engine import DRAFTERS

FILE = Path(__file__).resolve().parents[1] / "docs" / "models.md"
_COLUMNS = "| `--drafter` | drafts | needs |"


def table(*, research: bool) -> str:
    """The drafters of one kind, a row each."""
    rows = [f"{_COLUMNS} source |" if research else _COLUMNS, "| --- " * (3 + research) + "|"]
    for entry in reversed(DRAFTERS.values()):
        if entry.research is research:
            row = f"| `{entry.name}` | {entry.summary} | {entry.condition.needs} |"
            rows.append(f"{row} {entry.source} |" if research else row)
    return "\n".join(rows) + "\n"


def document(text: str) -> str:
    """The document with its tables made again."""
    for kind in ("core", "research"):
        begin, end = f"<!-- {kind} drafters -->\n", "<!-- end -->"
        before, _, rest = text.partition(begin)
        text = before + begin + table(research=kind == "research") + end + rest.partition(end)[2]
    return text


if __name__ == "__main__":
    FILE.write_text(document(FILE.read_text(encoding="utf-8")), encoding="utf-8")
