"""`specchat web`: the app in a browser."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from specchat.app.cli.commands import options
from specchat.app.cli.commands.listening import HOST, Host, Port, address_of, callers_key, key_option

PORT = 8001
KEY_VARIABLE = "SPECCHAT_WEB_KEY"
RUN = "from specchat.app.cli.main import main; main()"


@options.with_settings
def web(
    host: Host = HOST,
    port: Port = PORT,
    api_key: Annotated[str | None, key_option(KEY_VARIABLE, "What visitors must give.")] = None,
    given: options.Given = options.NOTHING,
    theme: Annotated[str | None, typer.Option("--theme", metavar="NAME", help="Colours of the interface.")] = None,
    attach: options.Attach = None,
) -> None:
    """Open the app in a browser. Each page that is open is an app with an engine of its own; with --attach they share
    a server's. Who comes in can do what you can do in the app.
    """
    options.check(given)
    options.check_attached(attach, given)
    key = callers_key(api_key, host, KEY_VARIABLE)
    from specchat.app.paths import settings_file
    from specchat.app.server.server import bind
    from specchat.app.settings.settings_file import load_settings
    from specchat.app.web.server import WebServer

    load_settings(settings_file(), given)  # what is wrong with them is said here, not in a page
    wanted = {**given, "theme": theme, "attach": attach}
    arguments = [options.argument(name, value) for name, value in wanted.items() if value is not None]
    bound = bind(host, port)

    def say() -> None:
        print(f"specchat in the browser: http://{address_of(bound)}/{'?key=…' if key else ''}", flush=True)

    WebServer(shlex.join([sys.executable, "-c", RUN, *arguments]), key, say).run(bound)
