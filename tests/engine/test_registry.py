"""Registry of drafters: one entry makes a drafter known everywhere; imports by name make no cycle."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from scripts.make_drafter_tables import FILE, document
from specchat.engine import registry
from specchat.engine.registry import DRAFTERS, DrafterEntry, unknown_drafter
from tests.engine.tiny import ask, ids_of, rounds_of, tiny_engine, tiny_model

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "CONTRIBUTING.md").read_text().split("\n## Adding a drafter\n")[1].split("\n## ")[0]
MODULE, ENTRY = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
"""The example of a new drafter: its module, and its entry."""
LISTS = """
import sys
from specchat.engine.registry import DRAFTERS, RESEARCH, DrafterEntry
entry = eval(sys.argv[1])
DRAFTERS[entry.name] = entry
from specchat.app.cli.main import main
from specchat.app.settings.settings import Settings
from scripts.make_drafter_tables import table
assert Settings(drafter=entry.name).drafter == entry.name
print(table(research=True))
assert "torch" not in sys.modules
sys.argv[1:] = ["ask", "--help"]
main()
"""


def test_the_documents_list_every_drafter() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert text == document(text), "run python -m scripts.make_drafter_tables"


def test_a_new_entry_is_listed_everywhere_without_torch() -> None:
    command = [sys.executable, "-c", LISTS, ENTRY]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert "\n| `last-token` | the last token again and again |" in done.stdout, done.stderr
    assert re.search(r"\n  last-token +the last token again and again\n", done.stdout)


def test_a_new_entry_and_its_module_are_a_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    entry: DrafterEntry = eval(ENTRY, vars(registry))
    module = ModuleType(entry.module)
    exec(MODULE, vars(module))
    monkeypatch.setitem(DRAFTERS, entry.name, entry)
    monkeypatch.setitem(sys.modules, entry.module, module)
    with tiny_engine(tiny_model()) as engine:
        assert entry.name in engine.wait_ready().drafters
        events = list(engine.stream(ask("abab", drafter=entry.name, gamma=2, max_tokens=8)))
        assert any(each.drafted for each in rounds_of(events))
        assert ids_of(events) == ids_of(engine.stream(ask("abab", drafter="none", max_tokens=8)))


@pytest.mark.parametrize(("name", "hint"), [("model", r" \(it needs --draft\)"), ("none", ""), ("magic", "")])
def test_a_missing_drafter_is_named_with_what_it_needs(name: str, hint: str) -> None:
    assert re.fullmatch(rf"drafter '{name}' is not available{hint}: choose one of a, b", unknown_drafter(name, "ab"))
