"""Everything that a GPU has to prove, by one command in ten minutes: python -m benchmarks.gpu_day --out DIR."""
