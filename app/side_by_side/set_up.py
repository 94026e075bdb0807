"""Setups of lanes: a drafter with options, as in head:gamma=6 or model:gamma=auto,draft=FOLDER."""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specchat.app.errors import SettingsError, UsageError
from specchat.app.settings.controls import gamma_limit
from specchat.app.settings.settings import AUTO, DRAFTERS, Settings
from specchat.engine import EngineConfig, gamma_text, models_folder
from specchat.engine.tools.lane_figures import WITHOUT_MODEL

FIELDS = ("gamma", "draft", "target")
EXAMPLE = "as in none, ngram:gamma=auto or model:gamma=6,draft=FOLDER"


def parse_set_up(text: str) -> dict[str, Any]:
    """The changed settings of DRAFTER, or DRAFTER:NAME=VALUE,NAME=VALUE.

    Raises:
        UsageError: the text is not in this form.
    """
    drafter, colon, rest = text.strip().partition(":")
    if not drafter:
        raise UsageError(f"setup {text!r} names no drafter: write one, {EXAMPLE}")
    if drafter not in DRAFTERS:
        raise UsageError(f"setup {text!r} begins with {drafter!r}, which is not a drafter: use {', '.join(DRAFTERS)}")
    values: dict[str, Any] = {}
    for part in rest.split(",") if colon else ():
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in FIELDS or not equals or not value:
            raise UsageError(f"setup {text!r} has {part!r}, which is not one of gamma=, draft=, target=: {EXAMPLE}")
        if name == "draft" and name in values:  # several that are merged
            value = f"{values[name]},{value}"
        elif name in values:
            raise UsageError(f"setup {text!r} has {name} twice: leave one of them out")
        values[name] = value
    if drafter == "none":
        for name in ("gamma", "draft"):
            if name in values and values[name] != "0":
                raise UsageError(f"setup {text!r} has a {name}, and none drafts nothing: leave it out")
        values |= {"gamma": "0", "draft": ""}
    if "gamma" in values:
        values["gamma"] = _gamma(text, values["gamma"])
    return {"drafter": drafter, **values}


def label(settings: Settings, offered: Sequence[str] = ()) -> str:
    """A lane's label; `offered` are its available drafters once known, the best one first."""
    if settings.drafter == "none" or settings.gamma == 0:
        return "no drafts"
    drafter = offered[0] if offered and settings.drafter == AUTO else settings.drafter
    name = "best drafter" if drafter == AUTO else drafter
    return f"{name} {gamma_limit(gamma_text(settings.gamma))}"


def lanes(left: str | None, right: str | None, shared: Settings) -> tuple[Settings, Settings]:
    """The settings of both lanes; by default no drafts on the left and the best drafter on the right.

    Raises:
        SettingsError, UsageError: a setup is not understood or contradicts itself.
    """
    made = []
    usual = AUTO if shared.drafter == "none" else shared.drafter
    for name, text in (("--left", left or "none"), ("--right", right or usual)):
        try:
            made.append(replace(shared, **parse_set_up(text)))
        except SettingsError as error:
            raise UsageError(f"{name} {text}: {error}") from None
    return made[0], made[1]


def lane_config(settings: Settings, *, exact: bool) -> EngineConfig:
    """The engine configuration of one lane, which runs one reply at a time."""
    config = replace(settings.engine_config(models_folder()), slots=1, exact=exact)
    # A head slows down every pass of its target, so only a lane that uses it loads one.
    return replace(config, heads=()) if settings.drafter in WITHOUT_MODEL else config


def with_seed(settings: Settings) -> Settings:
    """The settings with a seed, chosen at random if none is given: both lanes sample with the same seed."""
    if settings.seed is not None or settings.sampling().greedy:
        return settings
    return replace(settings, seed=secrets.randbelow(1 << 31))


def _gamma(text: str, value: str) -> int | None:
    if value == AUTO:
        return None
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"setup {text!r} has gamma {value!r}: it must be a whole number or auto") from None
