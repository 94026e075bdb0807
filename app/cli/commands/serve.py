"""`specchat serve`: the engine behind the OpenAI protocol."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from specchat.app.cli.commands import options
from specchat.app.cli.commands.listening import HOST, Host, Port, address_of, callers_key, key_option
from specchat.engine import EngineError, models_folder

PORT = 8000
KEY_VARIABLE = "SPECCHAT_API_KEY"


@options.with_settings
def serve(
    host: Host = HOST,
    port: Port = PORT,
    api_key: Annotated[str | None, key_option(KEY_VARIABLE, "What callers must give.")] = None,
    queue: Annotated[
        int, typer.Option("--queue", metavar="N", min=0, help="Requests that may wait for a slot.")
    ] = 1024,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="S", min=0.001, help="Seconds a reply may take, waiting included.")
    ] = 600.0,
    drain: Annotated[
        float, typer.Option("--drain", metavar="S", min=0, help="Seconds replies have to finish after SIGTERM.")
    ] = 30.0,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            "--cors", metavar="ORIGIN", help="A web page that may ask, or *; may be repeated; none if left out."
        ),
    ] = None,
    given: options.Given = options.NOTHING,
) -> None:
    """Serve the OpenAI protocol: /v1/chat/completions, /v1/completions, /v1/models, /tokenize, /health, /metrics.

    What a request leaves out is as the options and the settings say. With "speculation": true, every chunk says what
    became of each drafted token.
    """
    options.check(given)
    key = callers_key(api_key, host, KEY_VARIABLE)
    from specchat.app.cli.commands.ask import load
    from specchat.app.paths import settings_file
    from specchat.app.sanitize import escape_controls
    from specchat.app.server.application import Limits
    from specchat.app.server.server import bind, run
    from specchat.app.settings.settings_file import load_settings
    from specchat.engine import Engine

    settings, notice = load_settings(settings_file(), given)
    if notice:
        print(f"specchat: {escape_controls(notice)}", file=sys.stderr)
    bound = bind(host, port)
    engine = Engine(settings.engine_config(models_folder()))
    try:
        ready = load(engine)

        def say() -> None:
            room = f"{ready.slots} slots of {ready.context} tokens, {ready.device}, {ready.dtype}"
            print(f"serving {escape_controls(ready.target)} on http://{address_of(bound)}/v1 ({room})", flush=True)

        limits = Limits(queue, timeout)
        death = run(engine, settings, bound, limits, key=key, origins=cors or [], drain=drain, on_start=say)
    except BaseException:
        engine.close(timeout=0)
        raise
    engine.close()
    if death is not None:
        raise EngineError(death)
