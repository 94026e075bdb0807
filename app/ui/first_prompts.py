"""Prompts for a first minute: they show speculation at its best, at its worst, and in between."""

from __future__ import annotations

from typing import NamedTuple


class FirstPrompt(NamedTuple):
    """A prompt, and what it shows."""

    shows: str
    text: str


FIRST_PROMPTS = (
    FirstPrompt("at its best", "Write a JSON list of users with id, name, email and city."),
    FirstPrompt("in between", "Write a Python class Stack with push, pop, peek and size."),
    FirstPrompt("at its worst", "Explain in three sentences why the sky is blue."),
)
"""With the default set-up τ is about 5.8, 1.7 and 1.1: what repeats is easy to guess, what is new is not."""
