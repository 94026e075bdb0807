"""The KV cache of a model: storage by slot, and the views of it that a pass reads and writes."""
