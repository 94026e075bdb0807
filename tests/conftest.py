"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is no reason to fail: examples may take as long as they take.
settings.register_profile("specchat", deadline=None)
settings.load_profile("specchat")
