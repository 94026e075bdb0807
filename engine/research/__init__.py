"""Drafting methods of the literature that few people use: one file each, imported only when requested by name."""
