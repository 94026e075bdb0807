"""`specchat serve`, an OpenAI-compatible server, and `specchat web`, the app in a browser."""

import shlex
import socket
import sys
from typing import Annotated

from specchat.app.cli import options
from specchat.app.cli.effective_settings import effective_settings
from specchat.app.cli.options import opt
from specchat.app.errors import UsageError
from specchat.app.sanitize import is_this_machine
from specchat.engine import EngineError

_HOST = "127.0.0.1"
_SERVE_KEY, _WEB_KEY = "SPECCHAT_API_KEY", "SPECCHAT_WEB_KEY"
_RUN = "from specchat.app.cli.main import main; main()"

_ALLOW_HOST = "Name of this server on the internet, such as a proxy's, or *; may be repeated."
Host = Annotated[str, opt("--host", "ADDRESS", "Address to listen on; others than this machine need a key.")]
Port = Annotated[int, opt("--port", "N", "0 takes a free one.", min=0, max=65535)]


@options.collect(given=options.SETTINGS)
def serve(
    given: options.Given,
    host: Host = _HOST,
    port: Port = 8000,
    api_key: Annotated[str | None, opt("--api-key", "KEY", "Key that clients must send.", envvar=_SERVE_KEY)] = None,
    queue: Annotated[int, opt("--queue", "N", "Requests that may wait for a slot.", min=0)] = 1024,
    timeout: Annotated[float, opt("--timeout", "S", "Seconds a reply may take, waiting included.", min=0.001)] = 600.0,
    drain: Annotated[float, opt("--drain", "S", "Seconds replies have to finish after SIGTERM.", min=0)] = 30.0,
    stop_repeats: Annotated[bool, opt("--stop-repeats", None, "End replies that repeat themselves.")] = False,
    cors: Annotated[list[str] | None, opt("--cors", "ORIGIN", "Web page that may ask, or *; may be repeated.")] = None,
    allow_host: Annotated[list[str] | None, opt("--allow-host", "NAME", _ALLOW_HOST)] = None,
) -> None:
    """Serve the OpenAI protocol (/v1/chat/completions, /v1/responses, /v1/completions), /tokenize, /health, /metrics.

    Options and settings are the defaults of requests. With "speculation": true, every chunk reports the fate of each
    drafted token.
    """
    options.check(given)
    key = callers_key(api_key, host, _SERVE_KEY)
    from specchat.app.cli.commands.ask import load, make_engine
    from specchat.app.server.application import Limits
    from specchat.app.server.server import bind, run

    settings = effective_settings(given)
    bound = bind(host, port)
    with make_engine(settings) as engine:
        ready = load(engine)

        def say() -> None:
            room = f"{ready.slots} slots of {ready.context} tokens, {ready.device}, {ready.dtype}"
            print(f"serving {ready.target} on http://{_address(bound)}/v1 ({room})", flush=True)

        limits = Limits(queue, timeout, stop_repeats)
        pages, hosts = cors or [], [host, *(allow_host or [])]
        death = run(engine, settings, bound, limits, key=key, origins=pages, hosts=hosts, drain=drain, on_start=say)
    if death is not None:
        raise EngineError(death)


@options.collect(given=options.SETTINGS)
def web(
    given: options.Given,
    host: Host = _HOST,
    port: Port = 8001,
    api_key: Annotated[str | None, opt("--api-key", "KEY", "Key that visitors must give.", envvar=_WEB_KEY)] = None,
    theme: options.Theme = None,
    attach: options.Attach = None,
) -> None:
    """Open the app in a browser. Each open page is an app with its own engine; with --attach they share a server.
    Anyone who connects has full control of the app.
    """
    options.check(given, attach)
    key = callers_key(api_key, host, _WEB_KEY)
    from specchat.app.server.server import bind
    from specchat.app.web.server import WebServer

    effective_settings(given)  # reports errors here instead of in a page
    wanted = {**given, "theme": theme, "attach": attach}
    arguments = [options.as_argument(name, value) for name, value in wanted.items() if value is not None]
    bound = bind(host, port)

    def say() -> None:
        print(f"specchat in the browser: http://{_address(bound)}/{'?key=…' if key else ''}", flush=True)

    WebServer(shlex.join([sys.executable, "-c", _RUN, *arguments]), key, say).run(bound)


def callers_key(given: str | None, host: str, variable: str) -> str | None:
    """The key that callers must give; None if only this machine can connect.

    Raises:
        UsageError: there is no key and other machines could connect, or it cannot be sent in a header.
    """
    key = (given or "").strip()
    if key and not (key.isascii() and key.isprintable()):
        raise UsageError("--api-key has characters that no header can carry: use letters, digits and signs")
    if not key and not is_this_machine(host):
        raise UsageError(f"--host {host} lets other machines in: give --api-key (or {variable}) as well")
    return key or None


def _address(bound: socket.socket) -> str:
    """Host and port of a socket, as in a URL."""
    name, number = bound.getsockname()[:2]
    return f"[{name}]:{number}" if ":" in name else f"{name}:{number}"
