"""Drafts by tables counted from text: the unigram and bigram models of Leviathan et al. 2023, section 3.6."""
