"""Block drafters: one pass of a small network drafts several positions at once."""
