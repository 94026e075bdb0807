"""Tools that drive the engine: benchmark, comparison, lossless checks, evaluation on text, distillation of drafts."""
