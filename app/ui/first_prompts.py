"""Prompts for a first minute: they show speculation at its best, at its worst, and in between."""

from typing import NamedTuple


class FirstPrompt(NamedTuple):
    """A prompt, and what it shows."""

    shows: str
    text: str


FIRST_PROMPTS = (
    FirstPrompt("at its best", "Write a Python function that reverses a string."),
    FirstPrompt("in between", "What is the water cycle?"),
    FirstPrompt("at its worst", "Explain in three sentences why the sky is blue."),
)
"""First prompts. With the default setup and γ 4, τ is about 2.3, 1.7 and 1.4: code is easy to guess, prose is not. All
replies end with an end token, after about a hundred tokens."""
