"""`specchat theory`: the table, its best row, and values that make no sense."""

import json

from tests.app.cli.commands.command import command


def test_the_table_marks_the_best_gamma() -> None:
    done = command("theory", "--alpha", "0.8", "--c", "0.05")
    assert done.code == 0
    best = next(line for line in done.out.splitlines() if "best" in line)
    assert best.split() == ["8", "4.33", "3.09×", "2.08×", "◂", "best"]
    assert done.out.endswith("Best is γ 8: 3.09× as fast as one token per pass.\n")


def test_it_says_where_drafting_does_not_pay_and_where_more_would() -> None:
    assert "does not pay: α is not above c" in command("theory", "--alpha", "0.1", "--c", "0.2").out
    assert "γ above 16 would give more" in command("theory", "--alpha", "0.99").out


def test_json_has_every_row() -> None:
    found = json.loads(command("theory", "--alpha", "0.8", "--c", "0", "--json").out)
    row = found["rows"][5]
    assert (row["gamma"], round(row["speedup"], 2), round(row["operations"], 2)) == (5, 3.69, 1.63)  # Table 1
    assert found["optimal_gamma"] == 16
