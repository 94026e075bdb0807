"""What the commands that listen on an address share: their options, the key that is needed, the address in words."""

from __future__ import annotations

import socket
from typing import Annotated, Any

import typer

from specchat.app.addresses import is_this_machine
from specchat.app.errors import UsageError

HOST = "127.0.0.1"
Host = Annotated[
    str, typer.Option("--host", metavar="ADDRESS", help="Where to listen; others than this machine need a key.")
]
Port = Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="0 takes a free one.")]


def key_option(variable: str, help_text: str) -> Any:
    """The option `--api-key`, which an environment variable can hold."""
    return typer.Option("--api-key", metavar="KEY", envvar=variable, help=help_text, show_default=False)


def callers_key(given: str | None, host: str, variable: str) -> str | None:
    """The key callers must give; `variable` can hold it.

    Raises:
        UsageError: there is none, and other machines could call; or it cannot be sent in a header.
    """
    key = (given or "").strip()
    if key and not (key.isascii() and key.isprintable()):
        raise UsageError("--api-key has characters that no header can carry: use letters, digits and signs")
    if not key and not is_this_machine(host):
        raise UsageError(f"--host {host} lets other machines in: give --api-key (or {variable}) as well")
    return key or None


def address_of(bound: socket.socket) -> str:
    """Where a socket listens, as it stands in a URL."""
    name, number = bound.getsockname()[:2]
    return f"[{name}]:{number}" if ":" in name else f"{name}:{number}"
