"""Benchmark of the engine: speed on this machine, compared with theory, memory bandwidth and other decoders (peers).

`run` runs it, and needs only torch, transformers and safetensors.
"""

from specchat.engine.tools.bench.command import BenchOptions, run
from specchat.engine.tools.bench.report import BenchReport

__all__ = ["BenchOptions", "BenchReport", "run"]
