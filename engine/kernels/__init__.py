"""Quantised CPU kernels in C++, called by ctypes: linear layers, whole decoders, draft heads, sampling."""
