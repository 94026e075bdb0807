"""Settings: command line options over `SPECCHAT_*` variables over the settings file over defaults.

`TABLE` describes them all. Settings of the engine (`EngineConfig`, `Sampling`, `Request`) are there as the engine
describes them, with its ranges or narrower ones, so a value accepted here is accepted there.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from specchat import engine
from specchat.app.errors import SettingsError
from specchat.app.paths import heads_folder
from specchat.engine import WHEN_FULL, Applies, EngineConfig, Message, Ready, Request, Sampling, setting, settings_of

AUTO = "auto"
DRAFTERS = (AUTO, *reversed(engine.DRAFTERS))
"""Values of the setting `drafter`."""
FOLD, SHOW, HIDE = REJECTED = ("fold", "show", "hide")
"""How finished replies show rejected and discarded tokens; all but `HIDE` show them while streaming."""
CHAT, WATCH = VIEWS = ("chat", "watch")
"""Levels of detail: replies with a line of figures each, or with the instruments around them."""
DEMONSTRATION = "smollm2-135m"
"""The default target: small enough for any machine."""
STOP, DROP_OLDEST, KEEP_ENDS = WHEN_FULL
PREFIX = "SPECCHAT_"
THINKING: dict[str, bool | str | None] = {
    AUTO: None, "on": True, "off": False, **{word: word for word in engine.THINKING_WORDS},
}  # fmt: skip
"""Values of the thinking switch of a chat template; auto leaves it to the template."""
ON_OFF = ("on", "off")
_RANGES = {
    "temperature": (5, "from 0 (greedy) to 5"), "repetition_penalty": (10, "from 0.01 to 10 (1 is off)"),
    "dry_multiplier": (10, "from 0 (off) to 10"), "dry_base": (10, "from 1 to 10"),
    "dry_allowed_length": (1000, "from 1 to 1000"), "slots": (1024, "from 1 to 1024"),
}  # fmt: skip
"""Largest useful values, and the ranges in words: larger values are typing mistakes, as 9.5 for 0.95."""
NO_CHAT = (
    "{} reads one text and holds no conversation: ask it with specchat ask, or choose another model (/model, --target)"
)
"""Message for an encoder-decoder model."""
NO_SWITCH = "the chat template of {} has no switch for thinking: the model thinks as it was trained to, or not"
"""Message for a model whose template has no switch."""
OF_ENGINE = {each.name: each for kind in (EngineConfig, Sampling, Request) for each in settings_of(kind).values()}
"""The settings of the engine."""


def _adapted(each: engine.Setting) -> engine.Setting:
    """A setting of the engine as it is written in the app: texts may be empty, and None is the model's own value."""
    if each.default is MISSING:
        return replace(each, default=DEMONSTRATION)
    if each.rule is not None and each.name in _RANGES:
        (largest, words), holds = _RANGES[each.name], each.rule.holds
        each = replace(each, rule=each.rule._replace(words=words, holds=lambda x: holds(x) and x <= largest))
    if each.kind in ("str | None", "Path | None"):
        return replace(each, kind="str", default="")
    if each.name == "drafter":
        return replace(each, choices=DRAFTERS)
    return replace(each, kind=f"{each.kind} | None", default=None) if each.recommended else each


def thinking_word(value: bool | str | None) -> str:
    """Name of a value of the thinking switch."""
    return next(word for word, each in THINKING.items() if each == value)


_shown = partial(setting, applies=Applies.SCREEN)
"""A setting of the screen."""
_Fields: Any = object
"""Base of a class of which the type checker does not know all fields."""


def _with_engine(kind: type) -> Any:
    """Class decorator for a dataclass that has the settings of the engine too, before its own."""
    adapted = {each.name: _adapted(each) for each in OF_ENGINE.values()}
    kind.__annotations__ = {name: each.kind for name, each in adapted.items()} | kind.__annotations__
    for name, each in adapted.items():
        setattr(kind, name, engine.entry(each))
    return dataclass(frozen=True, slots=True)(kind)


@_with_engine
class Settings(_Fields):  # type: ignore[misc]
    """One value per preference. `dataclasses.replace` makes a changed one.

    The settings of the engine are fields too; None, written auto, is the model's own value (`Ready.sampling`), and an
    empty text is none.

    Raises:
        SettingsError: a value is out of range.
    """

    thinking: str = setting(
        AUTO, "Switch the model's thinking on or off, where its chat template can.",
        topic=engine.MODEL, choices=tuple(THINKING),
    )  # fmt: skip
    """Whether models with a switch in their chat template think (`THINKING`); a chat may override it."""
    system: str = setting("", "System prompt of new chats.")
    rejected: str = _shown(
        FOLD, "How finished replies show rejected drafts: folded, in place or hidden.", choices=REJECTED
    )
    """How finished replies show rejected and discarded tokens (`REJECTED`): folded into marks, in place, or hidden."""
    keep_cache: str = setting(
        "off", "At exit, store the cache of the latest chats (at most 1 GB) for the next start.",
        topic=engine.MACHINE, applies=Applies.START, choices=ON_OFF,
    )  # fmt: skip
    """Whether what was read of the latest chats is written to disk at exit, for the next start."""
    theme: str = _shown("", "Colours: a Textual theme; empty for specchat's own.", "NAME")
    exports: str = _shown("", "Folder for screenshots and exported chats; empty for the default.", "FOLDER")
    """Folder for screenshots and exported chats; empty for the default (`app.paths`)."""
    reopen: str = setting(
        "off", "Whether a start opens the chat that was used last.", applies=Applies.START, choices=ON_OFF
    )
    view: str = _shown("", "Level of detail: the chat, or the instruments around it.", choices=("", *VIEWS))
    """One of `VIEWS`. Empty on a new machine: its first reply is watched, later starts open in the chat view."""
    tips: str = _shown("on", "Whether hints for new users are still to be shown: off once they were.", choices=ON_OFF)

    def __post_init__(self) -> None:
        if not self.target.strip():
            raise SettingsError("target is empty: name a preset, a hub id, a folder or a GGUF file")
        try:
            for name in _CHECKED:
                TABLE[name].check(name.replace("_", "-"), getattr(self, name))
            if self.drafter == "model" and not self.draft:
                raise SettingsError(
                    "drafter model needs a draft model: name one with --draft, or with /draft in a chat"
                )
            if self.drafter == "merged" and "," not in self.draft:
                raise SettingsError("drafter merged needs several draft models: name each with its own --draft")
            self.request("settings", (Message("user", "?"),))
            self.engine_config(Path())
        except engine.EngineError as error:
            raise SettingsError(str(error)) from None

    def with_thinking(self, thinking: bool | str | None) -> Settings:
        """The settings with another value of the thinking switch; None changes nothing."""
        return self if thinking is None else replace(self, thinking=thinking_word(thinking))

    def with_model(self, own: Sampling) -> Settings:
        """The settings with a model's own sampling settings where they have none."""
        values = {name: getattr(own, name) for name, value in self._shared_with(Sampling).items() if value is None}
        return replace(
            self, **{name: min(value, _RANGES[name][0]) if name in _RANGES else value for name, value in values.items()}
        )

    def sampling(self) -> Sampling:
        """Sampling options of requests; the engine's defaults where a value is the model's own."""
        return Sampling(**{name: value for name, value in self._shared_with(Sampling).items() if value is not None})

    def request(self, request_id: str, messages: tuple[Message, ...], stop: tuple[str, ...] = ()) -> Request:
        """A request for the next turn of a conversation."""
        options = self._shared_with(Request) | {"thinking": THINKING[self.thinking], "sampling": self.sampling()}
        return Request(request_id, messages, stop=stop, **options)

    def engine_config(self, models: Path, experience: Path | None = None, kept: Path | None = None) -> EngineConfig:
        """Configuration of an engine; `models` is the folder of local models, the others are as in `EngineConfig`."""
        options = self._shared_with(EngineConfig)
        options |= {name: options[name] or None for name in ("draft", "tokenizer", "chat_template")}
        if self.chat_template:
            options["chat_template"] = Path(self.chat_template)
        config = EngineConfig(models=models, experience=experience, kept=kept, **options)
        return replace(config, heads=(heads_folder(), *config.heads))

    def context_notice(self, ready: Ready) -> str | None:
        """A sentence where the model reads less text than is set."""
        if self.context is None or ready.context >= self.context:
            return None
        return f"{ready.target} reads at most {ready.context:,} tokens: this is the context"

    def _shared_with(self, kind: type[Sampling | Request | EngineConfig]) -> dict[str, Any]:
        """The settings that are options of the engine by the same name."""
        return {field.name: getattr(self, field.name) for field in fields(kind) if field.name in TABLE}


TABLE = settings_of(Settings)
"""All settings by name."""
_CHECKED = (*(name for name in TABLE if name not in OF_ENGINE), *_RANGES, "drafter", "cache_type")
"""Settings that are checked here; the engine checks the others."""
OF_MODEL = {"draft", "drafter", "gamma", "system"} | settings_of(Sampling).keys() - {"seed"}
"""Settings that are stored for a target (`settings_file.PROFILES`): what is good for one is not for all."""
