"""Settings: command line options over `SPECCHAT_*` variables over the settings file over defaults.

Ranges are the engine's own (`engine.Request`, `engine.EngineConfig`) or narrower, so a value accepted here is accepted
there.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from specchat import engine
from specchat.app.errors import SettingsError
from specchat.app.paths import heads_folder
from specchat.engine import (
    CACHE_TYPES,
    THINKING_WORDS,
    WHEN_FULL,
    EngineConfig,
    EngineError,
    Message,
    Ready,
    Request,
    Sampling,
)

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
    AUTO: None, "on": True, "off": False, **{word: word for word in THINKING_WORDS},
}  # fmt: skip
"""Values of the thinking switch of a chat template; auto leaves it to the template."""
_ON_OFF = ("on", "off")
_WORDS = {
    "drafter": DRAFTERS, "rejected": REJECTED, "view": ("", *VIEWS), "tips": _ON_OFF, "reopen": _ON_OFF,
    "keep_cache": _ON_OFF, "cache_type": CACHE_TYPES,
    "thinking": THINKING,
}  # fmt: skip
"""Settings that are one of a few words."""
_LARGEST = {
    "temperature": 5, "repetition_penalty": 10, "dry_multiplier": 10, "dry_base": 10, "dry_allowed_length": 1000,
    "slots": 1024,
}  # fmt: skip
"""Largest useful values: larger ones are typing mistakes, as 9.5 for 0.95."""
NO_CHAT = (
    "{} reads one text and holds no conversation: ask it with specchat ask, or choose another model (/model, --target)"
)
"""Message for an encoder-decoder model."""
NO_SWITCH = "the chat template of {} has no switch for thinking: the model thinks as it was trained to, or not"
"""Message for a model whose template has no switch."""


def thinking_word(value: bool | str | None) -> str:
    """Name of a value of the thinking switch."""
    return next(word for word, each in THINKING.items() if each == value)


@dataclass(frozen=True, slots=True)
class Settings:
    """One value per preference. `dataclasses.replace` makes a changed one.

    Raises:
        SettingsError: a value is out of range.
    """

    target: str = DEMONSTRATION
    """A preset, a hub id, a folder of safetensors, or a GGUF file."""
    draft: str = ""
    """A draft model, named as the target is, or several with commas between; empty for none."""
    drafter: str = "auto"
    """auto is the draft model if given, else the engine's best drafter."""
    gamma: int | None = None
    """Requested draft length per round; None, written auto, adapts it."""
    temperature: float | None = None
    """Here and below, None, written auto, is the model's own value (`Ready.sampling`)."""
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    lenience: float = 1.0
    """Below 1, more drafted tokens are accepted than is lossless."""
    max_tokens: int = 1024
    tokenizer: str = ""
    """Folder or hub id whose tokenizer and chat template replace the target's; empty for its own."""
    chat_template: str = ""
    """File with the target's chat template; empty for its own."""
    slots: int = 4
    """Maximum number of concurrent replies; others wait."""
    context: int | None = None
    """Maximum number of tokens of a chat, prompt and reply together; None, written auto, is as many as the model reads
    and memory can hold."""
    cache_memory: float | None = None
    """GB of memory that keeps what was read of all chats; None, written auto, is a quarter of what is free."""
    cache_type: str = "f16"
    """Of the target's keys and values: 16 bits each, or 8 (q8) where its weights are quantised and on the CPU."""
    keep_cache: str = "off"
    """Whether what was read of the latest chats is written to disk at exit, for the next start."""
    when_full: str = STOP
    """What happens to a chat that exceeds the context (`specchat.engine.WHEN_FULL`): it is not sent, or sent without
    the oldest turns, or without the middle ones."""
    dtype: str = "auto"
    quantize: str = "auto"
    """Weights: see `EngineConfig.quantize`."""
    device: str = "auto"
    system: str = ""
    """System prompt of new chats."""
    theme: str = ""
    """A Textual theme; empty for specchat's default."""
    exports: str = ""
    """Folder for screenshots and exported chats; empty for the default (`app.paths`)."""
    rejected: str = FOLD
    """How finished replies show rejected and discarded tokens (`REJECTED`): folded into marks, in place, or hidden."""
    reopen: str = "off"
    """Whether a start opens the chat that was used last, instead of an empty one."""
    view: str = ""
    """One of `VIEWS`. Empty on a new machine: its first reply is watched, later starts open in the chat view."""
    tips: str = "on"
    """Whether hints for new users are still to be shown: off once they were."""
    thinking: str = AUTO
    """Whether models with a switch in their chat template think (`THINKING`); a chat may override it."""

    def __post_init__(self) -> None:
        if not self.target.strip():
            raise SettingsError("target is empty: name a preset, a hub id, a folder or a GGUF file")
        for name, words in _WORDS.items():
            if (value := getattr(self, name)) not in words:
                raise SettingsError(f"{name} {value!r} is not known: choose one of {', '.join(filter(None, words))}")
        for name, largest in _LARGEST.items():
            if (number := getattr(self, name)) is not None and number > largest:
                raise SettingsError(f"{name.replace('_', '-')} is {number:g}: it must be at most {largest}")
        if self.drafter == "model" and not self.draft:
            raise SettingsError("drafter model needs a draft model: name one with --draft")
        if self.drafter == "merged" and "," not in self.draft:
            raise SettingsError("drafter merged needs several draft models: name each with its own --draft")
        try:
            self.request("settings", (Message("user", "?"),))
            self.engine_config(Path())
        except EngineError as error:
            raise SettingsError(str(error)) from None

    def with_thinking(self, thinking: bool | str | None) -> Settings:
        """The settings with another value of the thinking switch; None changes nothing."""
        return self if thinking is None else replace(self, thinking=thinking_word(thinking))

    def with_model(self, own: Sampling) -> Settings:
        """The settings with a model's own sampling settings where they have none."""
        values = {name: getattr(own, name) for name, value in self._shared_with(Sampling).items() if value is None}
        return replace(
            self, **{name: min(value, _LARGEST[name]) if name in _LARGEST else value for name, value in values.items()}
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
        options = self._shared_with(EngineConfig) | {
            "draft": self.draft or None,
            "tokenizer": self.tokenizer or None,
            "chat_template": Path(self.chat_template) if self.chat_template else None,
        }
        config = EngineConfig(models=models, experience=experience, kept=kept, **options)
        return replace(config, heads=(heads_folder(), *config.heads))

    def context_notice(self, ready: Ready) -> str | None:
        """A sentence where the model reads less text than is set."""
        if self.context is None or ready.context >= self.context:
            return None
        return f"{ready.target} reads at most {ready.context:,} tokens: this is the context"

    def _shared_with(self, kind: type[Sampling | Request | EngineConfig]) -> dict[str, Any]:
        """The settings that are options of the engine by the same name."""
        names = {field.name for field in fields(self)}
        return {field.name: getattr(self, field.name) for field in fields(kind) if field.name in names}


OF_MODEL = {"draft", "drafter", "gamma", "system"} | {each.name for each in fields(Settings)} & {
    each.name for each in fields(Sampling) if each.name != "seed"
}
"""Settings that are stored for a target (`settings_file.PROFILES`): what is good for one is not for all."""
