"""Settings of an engine: how they are described (range, meaning, when a change takes effect), and sampling.

A field of `EngineConfig`, `Request` or `Sampling` that is made by `setting` is an entry of the table of settings, from
which interfaces make their options, keys, controls and documents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cache
from math import inf
from typing import Any, NamedTuple

from specchat.engine.errors import EngineError, check

MODEL, SAMPLING, DRAFTING, MACHINE = TOPICS = ("Model", "Sampling", "Drafting", "Machine")
"""Groups of settings."""
_KEY = "setting"
"""Key of the description in the metadata of a field."""


class Applies(StrEnum):
    """When a change takes effect."""

    START = "start"
    """Models are loaded with it."""
    ROUND = "round"
    """Running requests have it from their next round on."""
    REQUEST = "request"
    """The next request has it."""
    SCREEN = "screen"
    """Only the screen changes, and at once."""


class Rule(NamedTuple):
    """The range of a setting."""

    words: str
    """The range in words, to follow "it must be"."""
    holds: Callable[[Any], bool]


ONE_OR_MORE = Rule("at least 1", lambda x: x >= 1)


@dataclass(frozen=True, slots=True)
class Setting:
    """One entry of the table of settings."""

    help: str
    """A sentence for lists of options."""
    sign: str = ""
    """Placeholder of a value: N, P, FILE."""
    topic: str = ""
    """One of `TOPICS`."""
    rule: Rule | None = None
    applies: Applies = Applies.REQUEST
    choices: tuple[str, ...] = ()
    """The valid words, if it is one of a few."""
    unit: str = ""
    """Unit of a number in messages."""
    recommended: bool = False
    """Whether a model may recommend a value, which counts unless the user sets one."""
    name: str = ""
    kind: str = ""
    """Its annotation: str, int or float, or one of them and None."""
    default: Any = None

    @property
    def type(self) -> str:
        """The type of its values other than None."""
        return self.kind.partition(" ")[0]

    def check(self, label: str, value: Any) -> None:
        """Check a value; None is valid if the annotation allows it.

        Args:
            label: the name of the setting in messages.
            value: the value.

        Raises:
            EngineError: it is not valid.
        """
        if self.choices and value not in self.choices:
            known = ", ".join(filter(None, self.choices))
            raise EngineError(f"{label} {value!r} is not known: choose one of {known}", self.name)
        if self.rule and not (value is None and self.kind.endswith("None")):
            shown = f"{value:g}" if isinstance(value, float) else value
            check(self.rule.holds(value), f"{label} is {shown}{self.unit}: it must be {self.rule.words}", self.name)


def setting(default: Any, *described: Any, **more: Any) -> Any:
    """A field of a dataclass with a description; `Setting` has the arguments after the default."""
    return field(default=default, metadata={_KEY: Setting(*described, **more)})


def entry(each: Setting) -> Any:
    """A field of another dataclass for a setting."""
    return field(default=each.default, metadata={_KEY: each})


@cache
def settings_of(kind: type) -> dict[str, Setting]:
    """The settings of a dataclass, by name."""
    return {
        each.name: replace(each.metadata[_KEY], name=each.name, kind=str(each.type), default=each.default)
        for each in fields(kind)
        if _KEY in each.metadata
    }


def check_settings(values: Any, space: str = "-") -> None:
    """Check all settings of a dataclass; `space` stands for the underscores of their names in messages.

    Raises:
        EngineError: a value is not valid.
    """
    for name, each in settings_of(values.__class__).items():
        each.check(name.replace("_", space), getattr(values, name))


_LARGEST_XTC = 0.5
"""Two tokens cannot both be likelier."""
COLDEST = 1e-20
"""Lowest temperature: only tied tokens share the probability at it, and no penalised logit overflows float32."""
_OFTEN = Rule("from -2 to 2 (0 is off)", lambda x: -2 <= x <= 2)
"""Range of the penalties of OpenAI's API."""


def _number(default: float, sign: str, words: str, holds: Callable[[float], bool], text: str) -> Any:
    """A setting of `Sampling` that a model may recommend."""
    return setting(default, text, sign, SAMPLING, Rule(words, holds), recommended=True)


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings: from logits to the standardised distribution (Leviathan et al. 2023, section 2.2).

    Raises:
        EngineError: a value is out of range.
    """

    temperature: float = _number(0.0, "T", "from 0 (greedy) to 100", lambda x: 0 <= x <= 100,
        "0 is greedy, usual is at most 2; default, as for the others: the model's own.")  # fmt: skip
    """0 is greedy: the most likely token."""
    top_k: int = _number(0, "N", "0 (off) or more", lambda x: x >= 0, "Keep the N likeliest tokens; 0 keeps all.")
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = _number(1.0, "P", "above 0 and at most 1", lambda x: 0 < x <= 1,
        "Keep the likeliest tokens that make up P.")  # fmt: skip
    """Keep the smallest set of most likely tokens whose total probability reaches this; 1 keeps all."""
    min_p: float = _number(0.0, "P", "at least 0 and below 1", lambda x: 0 <= x < 1,
        "Drop tokens below this share of the likeliest.")  # fmt: skip
    """Drop tokens less likely than this fraction of the most likely one; 0 drops none."""
    seed: int | None = setting(None, "Repeat the same random draws.", "N", SAMPLING)
    """None for a random one. With one, each position of the text has its number, which draws its token: the reply does
    not depend on drafts."""
    repetition_penalty: float = _number(1.0, "F", "from 0.01 to 100 (1 is off)", lambda x: 0.01 <= x <= 100,
        "Above 1 (usual: up to 1.3): tokens of prompt and reply become less likely.")  # fmt: skip
    """Divides positive and multiplies negative logits of tokens in prompt or reply (Keskar et al. 2019, "CTRL", section
    4.1, as implemented in transformers); 1 is off."""
    presence_penalty: float = _number(0.0, "F", *_OFTEN, "Above 0: tokens of the reply become less likely.")
    """Subtracted once from the logits of tokens in the reply so far (as in OpenAI's API); 0 is off."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Pairs (token id, value added to its logit before penalties)."""
    lenience: float = setting(
        1.0, "Below 1: faster, but no longer the target's exact distribution.", "L", DRAFTING,
        Rule("above 0 and at most 1 (lossless)", lambda x: 0 < x <= 1),
    )  # fmt: skip
    """Below 1, drafted tokens are accepted more often than is lossless (Leviathan et al. 2023, Appendix A.5)."""
    frequency_penalty: float = _number(0.0, "F", *_OFTEN,
        "Above 0: tokens of the reply become less likely with each occurrence.")  # fmt: skip
    """Subtracted from a token's logit once for each time it is in the reply so far (as in OpenAI's API); 0 is off."""
    dry_multiplier: float = _number(0.0, "F", "0 (off) or more", lambda x: 0 <= x < inf,
        "Above 0 (usual: 0.8): tokens that continue a repetition become less likely.")  # fmt: skip
    """DRY (`engine.sampling.penalties`): a token that continues a repetition of n ≥ `dry_allowed_length` tokens loses
    `dry_multiplier` · `dry_base` ^ (n - `dry_allowed_length`) of its logit; 0 is off."""
    dry_base: float = _number(1.75, "F", "1 or more", lambda x: 1 <= x < inf,
        "How fast DRY grows with the length of the repetition; usual: 1.75.")  # fmt: skip
    """How fast the penalty of DRY grows with the length of the repetition; at least 1."""
    dry_allowed_length: int = _number(2, "N", "from 1 to 2147483648", lambda x: 1 <= x <= 1 << 31,
        "Length of a repetition from which DRY counts, in tokens; usual: 2.")  # fmt: skip
    """Length of the shortest repetition that DRY penalises; at least 1."""
    dry_penalty_last_n: int = _number(-1, "N", "-1 (all), 0 (off) or up to 2147483648", lambda x: -1 <= x <= 1 << 31,
        "Last tokens in which DRY looks for repetitions; -1: all.")  # fmt: skip
    """Number of last tokens of prompt and reply in which DRY looks for repetitions; -1 for all, 0 is off."""
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    """Texts that end a repetition: none reaches across a token that contains one of them."""
    xtc_probability: float = _number(0.0, "P", "from 0 (off) to 1", lambda x: 0 <= x <= 1,
        "Above 0: chance to draw without the top choices (XTC).")  # fmt: skip
    """XTC: chance that a token is drawn without all tokens of at least `xtc_threshold` but the least likely of them,
    after all filters, as in text-generation-webui; 0 is off. Greedy replies do not use it."""
    xtc_threshold: float = _number(0.1, "P", "above 0 and at most 1", lambda x: 0 < x <= 1,
        "Least probability of a top choice of XTC; usual: 0.1.")  # fmt: skip
    """Above 0.5 it is off: at most one token reaches it."""

    def __post_init__(self) -> None:
        check_settings(self)
        for token, bias in self.logit_bias:
            check(token >= 0, f"logit-bias names token {token}: token ids start at 0", "logit_bias")
            told = f"logit-bias of token {token} is {bias:g}: it must be from -100 to 100"
            check(-100 <= bias <= 100, told, "logit_bias")
        tokens = [token for token, _ in self.logit_bias]
        for token in tokens if len(set(tokens)) < len(tokens) else ():
            told = f"logit-bias names token {token} more than once: give each token one bias"
            check(tokens.count(token) == 1, told, "logit_bias")
        told = "a dry-sequence-breaker is empty: it would break every repetition"
        check(all(self.dry_sequence_breakers), told, "dry_sequence_breakers")

    @property
    def greedy(self) -> bool:
        """Whether the standardised distribution is one-hot."""
        return self.temperature == 0 or self.top_k == 1

    @property
    def lossless(self) -> bool:
        """Whether the reply has the target's own distribution, whatever the drafter."""
        return self.lenience == 1

    @property
    def dry(self) -> bool:
        """Whether DRY is on."""
        return self.dry_multiplier > 0 and self.dry_penalty_last_n != 0

    @property
    def xtc(self) -> bool:
        """Whether XTC is on."""
        return self.xtc_probability > 0 and self.xtc_threshold <= _LARGEST_XTC and not self.greedy

    @property
    def adjusts_drafts(self) -> bool:
        """Whether the logits of drafts are changed: by a bias or a penalty other than DRY."""
        penalties = self.presence_penalty, self.frequency_penalty
        return self.repetition_penalty != 1 or any(penalties) or bool(self.logit_bias)

    @property
    def adjusts(self) -> bool:
        """Whether the target's logits are changed (bias, penalties) before they are standardised."""
        return self.adjusts_drafts or self.dry

    def check_vocabulary(self, size: int) -> None:
        """Check the settings against a vocabulary of V = `size` tokens.

        Raises:
            EngineError: a biased token is outside it.
        """
        for token, _ in self.logit_bias:
            check(
                token < size,
                f"logit-bias names token {token} and the model has {size} tokens: choose one below that",
                "logit_bias",
            )


SAMPLING_NUMBERS = tuple(name for name, each in settings_of(Sampling).items() if each.recommended)
"""Fields of `Sampling` that a model may recommend and a client may set."""
