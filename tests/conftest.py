"""What all tests share."""

import gc
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from specchat.engine import models_folder

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # `benchmarks.gpu_day` runs tests of the engine where little is installed
    pass
else:
    # A busy machine is no reason to fail: examples may take as long as they take, and are the same in every run.
    settings.register_profile("specchat", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("specchat")

if "PYTEST_XDIST_WORKER" in os.environ:  # each worker is one of several on the same cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts the tests in the background lets them and their programs ignore ctrl+c, which some of them press.
signal.signal(signal.SIGINT, signal.default_int_handler)

LIMIT_S, SLOW_LIMIT_S = 300, 1200
"""Seconds of a test, of its fixtures' setup, and of their teardown."""
_MODELS = models_folder()  # before any test redirects it


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The folder of the default model in the user's own model store, fetched if it is not there yet."""
    from specchat.engine.models.catalog import DEFAULT_PRESET
    from specchat.engine.models.resolve import resolve
    from specchat.engine.models.store import ModelStore
    from specchat.engine.progress import ignore_progress

    return resolve(DEFAULT_PRESET, ModelStore(_MODELS), ignore_progress).folder()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a small random model and gives its folder; arguments as `tests.tiny_model.write_tiny_model`."""
    from tests.tiny_model import write_tiny_model

    folder, numbers = tmp_path_factory.mktemp("models"), count()
    return lambda **arguments: write_tiny_model(folder / f"tiny-{next(numbers)}", **arguments)


def pytest_collection_finish() -> None:
    """Collect garbage seldom and not in what is imported: it took a third of the time of the interface's tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.hookimpl(wrapper=True)
def _limit(item: pytest.Item) -> Iterator[None]:
    """No part of a test waits for ever: what is still running after the limit is interrupted where it waits."""
    limit = SLOW_LIMIT_S if item.get_closest_marker("slow") else LIMIT_S

    def interrupt(*_: object) -> None:
        pytest.fail(f"not done after {limit} seconds")

    signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(limit)
    try:
        return (yield)
    finally:
        signal.alarm(0)


pytest_runtest_setup = pytest_runtest_call = pytest_runtest_teardown = _limit


@pytest.hookimpl(tryfirst=True)  # before the choice by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases beyond `daily` as slow; without a GPU, skip the tests that need one, and state the reason."""
    import torch

    cases = defaultdict[tuple[Path, str], list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("daily") and not item.get_closest_marker("slow"):
            cases[item.path, item.nodeid.partition("[")[0]].append(item)
        if not torch.cuda.is_available() and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    for each in cases.values():
        (count,) = each[0].get_closest_marker("daily").args  # type: ignore[union-attr]
        kept = {i * len(each) // count for i in range(count)}
        for i, item in enumerate(each):
            if i not in kept:
                item.add_marker(pytest.mark.slow)
