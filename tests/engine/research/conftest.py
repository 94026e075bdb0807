"""Fixtures of research drafters' tests."""

from tests.engine.drafters.conftest import one_thread

__all__ = ["one_thread"]
