"""Loading of torch's shared library while the program still reads its command line: a sixth of torch's import."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from specchat.engine.threads import JoinedThread

_LIBRARIES = (("libtorch_global_deps.so", ctypes.RTLD_GLOBAL), ("libtorch_cpu.so", ctypes.RTLD_LOCAL))
"""Libraries in torch's own order, with its modes (`torch._load_global_deps`)."""


def preload_torch() -> None:
    """Begin to load the library, in a separate thread; torch's import, which needs it, finds it loaded.

    Where there is nothing to gain, or it fails, nothing happens: torch's import does the rest, and reports what is
    wrong.
    """
    found = find_spec("torch") if sys.platform == "linux" and "torch" not in sys.modules else None
    if found is None or found.origin is None:
        return
    folder = Path(found.origin).parent / "lib"
    JoinedThread("preload", partial(_load, folder)).start()


def _load(folder: Path) -> None:
    # Called as a plain function, as ctypes.CDLL keeps Python's lock while it loads.
    load = ctypes.CDLL(None).dlopen
    load.restype, load.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_int]
    for name, mode in _LIBRARIES:
        load(os.fsencode(folder / name), os.RTLD_NOW | mode)
