"""Families of models, a module for each kind; a new module is found by its name in this folder."""

from __future__ import annotations

import functools
from importlib import import_module
from pkgutil import iter_modules

from specchat.engine.models.family import Family


@functools.cache
def families() -> tuple[Family, ...]:
    """All families."""
    modules = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
    return tuple(family for module in modules for family in module.FAMILIES)


def family_of(model_type: object) -> Family | None:
    """The family of a model type of transformers; None if it has no description."""
    return next((family for family in families() if model_type in family.types), None)


def family_of_gguf(architecture: str) -> Family | None:
    """The family of an architecture of llama.cpp; None if its files are left to transformers' reader."""
    return next((family for family in families() if family.architecture == architecture), None)
