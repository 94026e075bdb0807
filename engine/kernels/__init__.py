"""Quantised CPU kernels of our own: packed weights, linear layers and a whole decoder, in C++ behind ctypes."""
