"""Trains a draft head on one GPU, on text that the target writes between updates."""
