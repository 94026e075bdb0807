"""llama.cpp's shared libraries: where they are, and the functions of its C interface that the benchmark calls.

llama.h passes its parameters in structures by value, and their layout differs between releases. Only what a release
says itself is relied on: a structure is a block larger than any of them, filled by llama.cpp's own defaults, and a
field is set where its default was found. What was asked for is read back afterwards (`llama_cpp_decoder`).
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import sys
from collections.abc import Mapping
from ctypes import POINTER, Structure, c_bool, c_char_p, c_float, c_int8, c_int32, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any

from specchat.engine.errors import EngineError

VARIABLE = "SPECCHAT_LLAMA_CPP"
"""Variable that names the folder of the libraries where the option does not."""
_SUFFIXES = (".so", ".dylib")
_PACKAGES = {
    ("linux", "x86_64"): "linux-x64",
    ("linux", "aarch64"): "linux-arm64",
    ("darwin", "arm64"): "mac-arm64-metal",
    ("darwin", "x86_64"): "mac-x64",
}
"""npm's packages of prebuilt libraries, by system and processor."""
_BUILD_FILE = "_nlcBuildMetadata.json"
_WORDS = 256
_N_CTX, _N_BATCH, _N_SEQ_MAX = 0, 1, 3
_DEFAULT_START = (512, 2048, 512, 1)
"""n_ctx, n_batch, n_ubatch and n_seq_max, with which llama_context_params begins."""
_DEFAULT_THREADS = 4
"""GGML_DEFAULT_N_THREADS."""
_ERROR_LEVEL = 4
_LOADED_CPU = "loaded CPU backend from "
_LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, c_char_p, c_void_p)


class Parameters(Structure):
    """A structure of parameters of llama.h or ggml.h; larger than any, in which the functions do not look further."""

    _fields_ = (("words", c_uint32 * _WORDS),)


class Batch(Structure):
    """`llama_batch`."""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    )


_LLAMA: Mapping[str, tuple[Any, list[Any]]] = {
    "llama_backend_init": (None, []),
    "llama_print_system_info": (c_char_p, []),
    "llama_model_default_params": (Parameters, []),
    "llama_context_default_params": (Parameters, []),
    "llama_model_load_from_file": (c_void_p, [c_char_p, Parameters]),
    "llama_model_free": (None, [c_void_p]),
    "llama_init_from_model": (c_void_p, [c_void_p, Parameters]),
    "llama_free": (None, [c_void_p]),
    "llama_n_ctx": (c_uint32, [c_void_p]),
    "llama_n_batch": (c_uint32, [c_void_p]),
    "llama_n_seq_max": (c_uint32, [c_void_p]),
    "llama_n_threads": (c_int32, [c_void_p]),
    "llama_n_threads_batch": (c_int32, [c_void_p]),
    "llama_attach_threadpool": (None, [c_void_p, c_void_p, c_void_p]),
    "llama_get_memory": (c_void_p, [c_void_p]),
    "llama_memory_seq_rm": (c_bool, [c_void_p, c_int32, c_int32, c_int32]),
    "llama_batch_get_one": (Batch, [POINTER(c_int32), c_int32]),
    "llama_decode": (c_int32, [c_void_p, Batch]),
    "llama_synchronize": (None, [c_void_p]),
    "llama_model_get_vocab": (c_void_p, [c_void_p]),
    "llama_vocab_n_tokens": (c_int32, [c_void_p]),
    "llama_sampler_chain_default_params": (c_bool, []),
    "llama_sampler_chain_init": (c_void_p, [c_bool]),
    "llama_sampler_chain_add": (None, [c_void_p, c_void_p]),
    "llama_sampler_init_greedy": (c_void_p, []),
    "llama_sampler_init_temp": (c_void_p, [c_float]),
    "llama_sampler_init_dist": (c_void_p, [c_uint32]),
    "llama_sampler_sample": (c_int32, [c_void_p, c_void_p, c_int32]),
    "llama_sampler_free": (None, [c_void_p]),
    "llama_log_set": (None, [_LogCallback, c_void_p]),
}
_GGML: Mapping[str, tuple[Any, list[Any]]] = {
    "ggml_backend_load_all_from_path": (None, [c_char_p]),
    "ggml_backend_dev_count": (c_size_t, []),
    "ggml_threadpool_params_init": (None, [POINTER(Parameters), c_int32]),
    "ggml_threadpool_new": (c_void_p, [POINTER(Parameters)]),
    "ggml_threadpool_free": (None, [c_void_p]),
    "ggml_threadpool_pause": (None, [c_void_p]),
}


def find_llama_cpp(folder: Path | None) -> Path:
    """The libllama to load.

    Args:
        folder: holds it, at any depth; of several the one with the shortest path is taken. None for the folder that
            `VARIABLE` names.

    Raises:
        EngineError: no folder is given, or it holds none; says how to get one.
    """
    if folder is None and os.environ.get(VARIABLE):
        folder = Path(os.environ[VARIABLE])
    if folder is None:
        raise EngineError(f"the folder of its library is not given: {_advice('~/llama.cpp')}")
    found = [file for file in folder.expanduser().rglob("libllama.*") if _is_library(file)]
    if not found:
        raise EngineError(f"there is no libllama under {folder}: {_advice(folder)}")
    return min(found, key=lambda file: (len(str(file)), str(file)))


def _advice(folder: Path | str) -> str:
    package = _PACKAGES.get((sys.platform, platform.machine()))
    if package is None:
        return f"build llama.cpp with shared libraries, and name their folder with --llama-cpp or {VARIABLE}"
    return (
        f"run `npm install --prefix {folder} @node-llama-cpp/{package}` and give --llama-cpp {folder} (or {VARIABLE})"
    )


def _is_library(file: Path) -> bool:
    return file.is_file() and any(suffix in file.suffixes for suffix in _SUFFIXES)


class LlamaCppLibrary:
    """The functions of llama.cpp, and the variant for this processor that it has chosen itself.

    Args:
        file: libllama; libggml and the variants lie beside it.

    Raises:
        EngineError: it cannot be loaded, or is of a release with another interface.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._log: list[tuple[int, str]] = []
        self._callback = _LogCallback(lambda level, text, _: self._log.append((level, text.decode(errors="replace"))))
        ggml = next((each for each in sorted(file.parent.glob("libggml.*")) if _is_library(each)), None)
        try:
            llama = ctypes.CDLL(str(file))
            self._libraries = [llama, *([ctypes.CDLL(str(ggml))] if ggml else [])]
        except OSError as error:
            raise EngineError(f"{file} cannot be loaded ({error}): {_advice('~/llama.cpp')}") from None
        self._declare(_LLAMA)
        self.llama_log_set(self._callback, None)
        self.llama_backend_init()
        self._load_variant()
        self._declare(_GGML)
        self.features = _features(self.llama_print_system_info())
        """Instruction sets that the loaded variant was compiled for."""
        self._threads_at = self._find_threads()

    def __getattr__(self, name: str) -> Any:
        for library in self.__dict__.get("_libraries", ()):
            if hasattr(library, name):
                return getattr(library, name)
        raise AttributeError(name)

    @property
    def version(self) -> str:
        """Release of llama.cpp, as the package or the library says it."""
        try:
            return str(json.loads((self.file.parent / _BUILD_FILE).read_text())["buildOptions"]["llamaCpp"]["release"])
        except (OSError, ValueError, KeyError, TypeError):
            return self.file.name

    @property
    def variant(self) -> str:
        """The library chosen for this processor, and the instruction sets in it."""
        return ": ".join(part for part in (self._variant, self.features) if part)

    def context_parameters(self, context: int, slots: int, threads: int) -> Parameters:
        """llama.cpp's defaults with these values.

        Args:
            context: tokens of all slots together.
            slots: sequences.
            threads: of passes over one token and over many.
        """
        parameters: Parameters = self.llama_context_default_params()
        parameters.words[_N_CTX] = context
        parameters.words[_N_BATCH] = max(context, parameters.words[_N_BATCH])
        parameters.words[_N_SEQ_MAX] = slots
        parameters.words[self._threads_at] = parameters.words[self._threads_at + 1] = threads
        return parameters

    def take_errors(self) -> str:
        """The first error logged since the last call; empty if there was none."""
        errors = [text.strip() for level, text in self._log if level == _ERROR_LEVEL]
        self._log.clear()
        return errors[0] if errors else ""

    def _declare(self, functions: Mapping[str, tuple[Any, list[Any]]]) -> None:
        for name, (result, arguments) in functions.items():
            try:
                function = getattr(self, name)
            except AttributeError:
                raise EngineError(f"{self.file} is of a release without {name}: {_advice('~/llama.cpp')}") from None
            function.restype, function.argtypes = result, arguments

    def _load_variant(self) -> None:
        """Let llama.cpp choose the variant for this processor, where the libraries have several."""
        self._variant = ""
        try:
            load = self.ggml_backend_load_all_from_path
        except AttributeError:  # a build with one variant only
            return
        load.restype, load.argtypes = None, [c_char_p]
        load(str(self.file.parent).encode())
        for _, text in self._log:
            if _LOADED_CPU in text:
                loaded = Path(text.split(_LOADED_CPU)[1].strip())
                self._variant = loaded.name.split(".")[0].removeprefix("lib")
                self._libraries.append(ctypes.CDLL(str(loaded)))

    def _find_threads(self) -> int:
        """Place of n_threads in llama_context_params; n_threads_batch follows."""
        words = list(self.llama_context_default_params().words)[:16]
        pairs = [at for at in range(4, 15) if words[at : at + 2] == [_DEFAULT_THREADS] * 2]
        if tuple(words[:4]) != _DEFAULT_START or not pairs:
            raise EngineError(
                f"{self.file} is of a release whose llama_context_params has a layout that is not known: "
                f"{_advice('~/llama.cpp')}"
            )
        return pairs[0]


def _features(system: bytes) -> str:
    """Those with a value other than 0 of "CPU : AVX = 1 | AVX2 = 0 | ..."."""
    pairs = [part.split("=") for part in system.decode().replace("CPU :", "").split("|") if "=" in part]
    return ", ".join(name.strip() for name, value in pairs if value.strip() != "0")
