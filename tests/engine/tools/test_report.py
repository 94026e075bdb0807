"""The report layer: tables, in narrow terminals too, and text that is made safe for them."""

from specchat.engine.tools.report import Table, one_line

TABLE = Table(("name", "first", "[second]"), [("a", "1", "22"), ("bb", "333", "[4]")], "title")


def test_columns_are_aligned() -> None:
    lines = [line for line in TABLE.text().splitlines() if "─" not in line]
    assert lines == ["title", "name  first  [second]", "a         1        22", "bb      333       [4]"]


def test_a_narrow_terminal_gets_the_columns_in_parts() -> None:
    lines = TABLE.text(width=14).splitlines()
    assert max(map(len, lines)) <= 14
    assert [line.split() for line in lines if line.startswith("bb")] == [["bb", "333"], ["bb", "[4]"]]


def test_control_characters_do_not_reach_a_terminal() -> None:
    assert one_line("a\nb\x1b[2Jc") == "a␤b·[2Jc"
