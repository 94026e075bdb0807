"""Helpers for one device: choosing it, its memory, copies to it, timing, padded widths."""
