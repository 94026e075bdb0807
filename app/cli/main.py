"""The console script. It imports little, as the interface's first frame waits for all imports."""

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from specchat.app.cli.terminal import escaped_output
from specchat.app.errors import AppError
from specchat.engine import EngineError, JoinedThread, check_system, preload_torch

FAILED = 2
INTERRUPTED = 130
_NEED_MODELS = ("ask", "serve")
"""Commands that load models at once, as the app does."""


def main() -> None:
    """Run the command line of this process, then leave."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller (>&-)
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for terminals in other encodings
    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # `run` has reported it; Python would print an error at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if JoinedThread.running():
        os._exit(code)  # the end of Python would wait for what is still being loaded
    sys.exit(code)


@escaped_output()
def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; a failure becomes one line on stderr."""
    try:
        check_system()
        if not arguments or arguments[0] in _NEED_MODELS:
            preload_torch()
        # The usual case: importing typer would delay the first frame by a fifth of a second.
        if not arguments and "_SPECCHAT_COMPLETE" not in os.environ:
            from specchat.app.cli.commands.chat import open_chat

            return open_chat({})
        from specchat.app.cli.command_line import execute

        code = execute(arguments)
        sys.stdout.flush()
        return code
    except (EngineError, AppError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader has closed the pipe (| head)
        return 1
    except OSError as error:
        return _fail(f"reading or writing {error.filename or 'data'} failed: {error.strerror or error}")
    except SystemExit as left:  # raised by typer for a broken pipe
        return left.code if isinstance(left.code, int) else 1


def _fail(sentence: str) -> int:
    print(f"specchat: {' '.join(sentence.split())}", file=sys.stderr)
    return FAILED
