"""Captures of CUDA graphs: what a failure switches off, the memory and the stream that they share, and threads."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.device import graphs
from specchat.engine.device.graphs import GraphPool
from tests.engine.pretend_cuda import GPU, OnGpu, pretended_gpu, to_gpu
from tests.engine.tiny import tiny_model
from tests.failing import fails


@pytest.mark.parametrize("where", ["warm", "capture"])
def test_memory_that_is_short_for_a_moment_switches_nothing_off(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_gpu(monkeypatch) as gpu:
        target = tiny_model()
        to_gpu(target.model)
        runner = TransformersBackend(target.model, 2, 64, 17)
        token = torch.zeros(1, 1, dtype=torch.long).as_subclass(OnGpu)
        with monkeypatch.context() as while_short:
            error = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
            while_short.setattr(graphs, where, fails(RuntimeError(error)))
            with pytest.raises(RuntimeError, match="ALLOC_FAILED"):
                runner.forward(token, [0], [0])
        assert gpu.graphs == 0
        runner.forward(token, [0], [0])
        assert gpu.graphs == 1
        assert runner.performance_warnings == []


def test_memory_that_runs_out_in_a_capture_is_no_reason_not_to_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")  # as torch does

    with pretended_gpu(monkeypatch):
        monkeypatch.setattr(graphs, "capture", fail)
        pool = GraphPool(GPU, capture=True)
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            pool.graph(lambda: None)
        assert pool.not_captured is None


def test_threads_capture_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most = [], []

    def capture(run: Callable[[], object], *_: object) -> Callable[[], object]:
        inside.append(run)
        time.sleep(0.01)
        most.append(len(inside))
        inside.remove(run)
        return run

    with pretended_gpu(monkeypatch):
        monkeypatch.setattr(graphs, "capture", capture)
        pools = [GraphPool(GPU, capture=True) for _ in range(3)]
        with ThreadPoolExecutor(3) as threads:
            for pool in pools * 3:
                threads.submit(pool.graph, lambda: None)
    assert most == [1] * 9
