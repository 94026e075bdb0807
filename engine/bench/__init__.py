"""How fast the engine is on this machine, beside what theory predicts, what the memory allows, and its peers.

`engine.bench.command.run` is the whole of it; `python -m engine.bench` is its command line, which needs nothing but
torch, transformers and safetensors.
"""
