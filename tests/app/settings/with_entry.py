"""The program with one more setting, `calm`: prints what each part makes of it.

Run: python -m tests.app.settings.with_entry MODULE ENTRY FIELD FOLDER, which inserts the entry before a field.
"""

import json
import os
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path

module, entry, field = sys.argv[1:4]
home = Path(sys.argv[4])


class Loader(SourceFileLoader):
    """Loads the module with the entry."""

    def get_code(self, _name: str) -> object:
        source = self.get_data(self.path).decode()
        assert source.count(f"    {field}") == 1
        return self.source_to_code(source.replace(f"    {field}", f"    {entry}\n    {field}").encode(), self.path)


class Finder:
    """Finds the module."""

    @staticmethod
    def find_spec(name: str, path: list[str] | None, _target: object = None) -> ModuleSpec | None:
        if name != module:
            return None
        spec = PathFinder.find_spec(name, path)
        assert spec is not None
        spec.loader = Loader(name, str(spec.origin))
        return spec


def main() -> None:
    """Print what each part of the program makes of the entry."""
    import typer

    from scripts.make_shell_files import reference
    from specchat.app.cli.command_line import app
    from specchat.app.errors import SettingsError
    from specchat.app.server.protocol import CompletionBody
    from specchat.app.server.requests import Defaults, requests_of
    from specchat.app.settings.controls import CONTROLS
    from specchat.app.settings.settings_file import load_settings
    from specchat.app.ui.action_table import SLASH_COMMANDS

    file = home / "settings.toml"
    file.write_text("calm = 2\n")
    in_file, _ = load_settings(file)
    os.environ["SPECCHAT_CALM"] = "3"
    settings, _ = load_settings(file)
    try:
        refused = str(replace(settings, calm=-1))
    except SettingsError as error:
        refused = str(error)
    served = "calm" in CompletionBody.model_fields
    body = CompletionBody(prompt=[1], **({"calm": 4} if served else {}))
    (request,) = requests_of(body, "call", Defaults(None, settings, 9))
    commands = typer.main.get_command(app).commands
    found = {
        "options": [name for name, each in commands.items() if any("--calm" in param.opts for param in each.params)],
        "key": in_file.calm,
        "range": refused,
        "variable": settings.calm,
        "field": getattr(request.sampling, "calm", None),
        "start": getattr(settings.engine_config(home), "calm", None),
        "control": [f"{each.label}, {each.takes}: {each.means}" for each in CONTROLS if each.name == "calm"],
        "command": [f"/{each.slash}" for each in SLASH_COMMANDS if each.command == "calm"],
        "reference": [line for line in reference().splitlines() if "calm" in line],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    sys.meta_path.insert(0, Finder())
    main()
