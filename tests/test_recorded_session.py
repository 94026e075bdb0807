"""The recorded session plays in a terminal: both levels of detail and a token's details, nothing that asks or stays."""

import json
from pathlib import Path

import pyte

from scripts.record_terminal import NOT_SHOWN, RecordedTerminal

SESSION = Path(__file__).parents[1] / "assets" / "terminal" / "session.cast"


def test_the_shipped_session_shows_both_levels_and_the_details() -> None:
    header, *events = [json.loads(line) for line in SESSION.read_text(encoding="utf-8").splitlines()]
    assert header["version"] == 2
    assert SESSION.stat().st_size < 1_000_000
    assert [at for at, _, _ in events] == sorted(at for at, _, _ in events)
    screen = pyte.Screen(header["width"], header["height"])
    stream, seen = pyte.Stream(screen), []
    for _, kind, text in events:
        assert kind == "o"
        assert not NOT_SHOWN.search(text)
        stream.feed(text)
        seen.append("\n".join(screen.display))
    replied = [each for each in seen if "tok/s ·" in each]
    assert any("acceptance ─" in each for each in replied)
    assert any("target p and draft q" in each for each in replied)
    assert any("acceptance ─" not in each and "target p" not in each for each in replied)


def test_what_is_written_is_kept_without_what_a_terminal_answers() -> None:
    program = r"printf '\033[?2048$p\033[?1003h\033[>25ud\303'; sleep 0.2; printf '\251j\303\240'"
    with RecordedTerminal("sh", "-c", program) as terminal:
        assert terminal.end() == 0
    assert "".join(text for _, text in terminal.output) == "déjà"
