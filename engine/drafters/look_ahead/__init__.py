"""Look-ahead embeddings: the target drafts for itself at positions that ride in its verifying pass (PaSS)."""
