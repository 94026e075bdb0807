"""MCP servers of the settings file: `[mcp.NAME]` with a command to start, or an address."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from specchat.app.errors import SettingsError
from specchat.app.settings.settings_file import SERVERS
from specchat.app.sources.tool_client import ToolServer
from specchat.app.storage.files import read_toml

_KINDS: Mapping[str, tuple[type[Any], str]] = {
    "command": (str, "a text"),
    "args": (list, "a list of texts"),
    "env": (dict, "a table of texts"),
    "url": (str, "an address, such as http://localhost:8000/mcp"),
    "headers": (dict, "a table of texts"),
    "time_limit": (float, "a number of seconds above 0"),
}


def server_entries(path: Path) -> Mapping[str, object]:
    """The entries of the MCP servers in the settings file, by name.

    Raises:
        SettingsError: the file cannot be read.
    """
    try:
        servers = read_toml(path).get(SERVERS, {})
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    return servers if isinstance(servers, Mapping) else {}


def tool_server(path: Path, name: str) -> ToolServer:
    """The server of this name in the settings file.

    Raises:
        SettingsError: there is none, or an entry of it is wrong.
    """
    known = server_entries(path)
    if name not in known:
        choice = f"choose one of {', '.join(known)}" if known else f'add [{SERVERS}.{name}] with command = "…"'
        raise SettingsError(f"the MCP server {name} is not in {path}: {choice}")
    written = known[name]
    entry = written if isinstance(written, Mapping) else {}
    values = {key: _typed(f"{SERVERS}.{name}.{key}", key, value) for key, value in entry.items()}
    if bool(values.get("command")) == bool(values.get("url")):
        raise SettingsError(f"{SERVERS}.{name} in {path} must have a command or a url, and only one of them")
    return ToolServer(name, **values)


def _typed(label: str, key: str, value: object) -> Any:
    """A value of the type that the key needs."""
    if key not in _KINDS:
        raise SettingsError(f"{label} is not known: choose one of {', '.join(_KINDS)}")
    kind, words = _KINDS[key]
    value = float(value) if kind is float and type(value) is int else value
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    fits = isinstance(value, kind) and all(isinstance(each, str) for each in inner)
    fits = fits and (key != "url" or _is_address(str(value)))
    if not fits or (isinstance(value, float) and not 0 < value < float("inf")):
        raise SettingsError(f"{label} is {value!r:.80}: it must be {words}")
    return value


def _is_address(text: str) -> bool:
    """Whether this is an address with a host, and with a port that can be one."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
