"""Drafters by name."""
