"""The draft head: a small network on the target's own hidden states that drafts for it."""
