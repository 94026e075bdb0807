"""Settings that can be changed while specchat runs: values, labels, and when a change takes effect."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specchat.app.errors import SettingsError
from specchat.app.settings.settings import AUTO, TABLE, Settings
from specchat.app.settings.settings_file import KINDS, PHRASES
from specchat.engine import SAMPLING_NUMBERS, Applies, Sampling

Value = str | int | float | None
OFF = "off"


@dataclass(frozen=True, slots=True)
class Control:
    """One setting in the panel of controls, with its own command.

    Only the name is needed: what is empty follows from the table of settings.
    """

    name: str
    """The setting in `TABLE`."""
    label: str = ""
    command: str = ""
    """The slash command, without its slash."""
    takes: str = ""
    """Valid values, to follow "it takes" in a sentence."""
    means: str = ""
    steps: tuple[Value, ...] = ()
    """Values that the arrow keys step through; none if it is only typed."""
    words: tuple[tuple[Value, str], ...] = ()
    """Values that are shown, and may be typed, as words."""
    form: bool = False
    """Whether its command opens a form for it: not part of presets."""
    by_template: bool = False
    """Whether it needs a switch in the model's chat template: not part of presets, and its command sets it for one
    chat."""
    sign: str = ""
    """Placeholder of the value of its command."""

    @property
    def applies(self) -> Applies:
        """When a change takes effect."""
        return TABLE[self.name].applies

    def text(self, settings: Settings | Sampling, own: Sampling | None = None) -> str:
        """Its current value as text; with the model's own value, if that is used."""
        value: Value = getattr(settings, self.name)
        if value is None and own is not None and hasattr(own, self.name) and (None, AUTO) in self.words:
            return f"{AUTO} ({self.text(own)})"
        word = dict(self.words).get(value)
        number = f"{value:g}" if isinstance(value, float) else " ".join(str(value).split())
        return word if word in (AUTO, OFF) else f"{number} {word}" if word else number

    def read(self, text: str) -> Value:
        """Parse a typed value.

        Raises:
            SettingsError: it is not valid.
        """
        text = text.strip()
        for value, word in self.words:
            if text == word:
                return value
        try:
            read: Value = KINDS[TABLE[self.name].type](text)
        except ValueError:
            raise SettingsError(f"{self.command} {text!r} is not understood: it takes {self.takes}") from None
        return read

    def put(self, settings: Settings, value: Value) -> Settings:
        """The settings with this value.

        Raises:
            SettingsError: it is out of range.
        """
        changed: dict[str, Any] = {self.name: value}
        return replace(settings, **changed)

    def step(self, value: Value, by: int, loaded: Mapping[str, Sequence[str]]) -> Value:
        """The value `by` steps further; a value between two steps goes to the next one.

        Args:
            loaded: steps that depend on the loaded model, by the control's name.
        """
        steps = loaded.get(self.name, self.steps)
        if value in steps:
            place = steps.index(value) + by
        else:
            numbers = [step for step in steps if isinstance(step, int | float)]
            present, rising = float(value or 0), numbers == sorted(numbers)
            before = sum(number < present if rising else number > present for number in numbers)
            place = len(steps) - len(numbers) + before - (by < 0)
        return steps[min(max(place, 0), len(steps) - 1)]


def control(name: str, shown: Control | None = None) -> Control:
    """The control of a setting; what `shown` leaves empty follows from the table of settings."""
    each, shown = TABLE[name], shown or Control(name)
    plain, optional = name.replace("_", " "), each.kind.endswith("None")
    words = shown.words or (((None, AUTO),) if optional else ())
    value = f"one of {', '.join(each.choices)}" if each.choices else PHRASES[each.type]
    takes = f"{value} {each.rule.words}" if each.rule else value
    sign = each.sign or "|".join(each.choices) or "VALUE"
    return replace(
        shown,
        label=shown.label or plain,
        command=shown.command or name.replace("_", "-"),
        takes=shown.takes or (f"{takes}, or {AUTO}" if optional else takes),
        means=shown.means or each.help[0].lower() + each.help[1:].rstrip("."),
        steps=shown.steps or each.choices,
        words=words,
        sign=shown.sign or (f"{sign}|{dict(words)[None]}" if None in dict(words) else sign),
    )


_SHOWN = (
    Control("gamma", "γ", means="most tokens to draft each round", steps=(None, *range(17))),
    Control("drafter"),
    Control("temperature", command="temp", means="0 is greedy, auto the model's own",
        steps=(None, 0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0), words=((None, AUTO), (0.0, "greedy"))),
    Control("top_k", "top-k", takes="a whole number, off or auto", means="keep the N likeliest tokens",
        steps=(None, 0, 1, 5, 10, 20, 40, 50, 100, 200), words=((None, AUTO), (0, OFF))),
    Control("top_p", "top-p", steps=(None, 1.0, 0.98, 0.95, 0.9, 0.8, 0.7, 0.5, 0.3), words=((None, AUTO), (1.0, OFF))),
    Control("min_p", "min-p", steps=(None, 0.0, 0.02, 0.05, 0.1, 0.2, 0.4), words=((None, AUTO), (0.0, OFF))),
    Control("repetition_penalty", "repetition", "repetition",
        means="above 1: tokens that occurred before are less likely",
        steps=(None, 1.0, 1.05, 1.1, 1.15, 1.2, 1.3), words=((None, AUTO), (1.0, OFF))),
    Control("dry_multiplier", "DRY", "dry",
        means="discourages repeated sequences of tokens",
        steps=(None, 0.0, 0.4, 0.8, 1.2, 1.6), words=((None, AUTO), (0.0, OFF))),
    Control("xtc_probability", "XTC", "xtc", means="chance to leave out the top choices",
        steps=(None, 0.0, 0.1, 0.25, 0.5, 0.75, 1.0), words=((None, AUTO), (0.0, OFF))),
    Control("seed", takes="a whole number, or off for another one each time", means="repeats the same random draws",
        steps=(None, *range(101)), words=((None, OFF),)),
    Control("lenience", means="below 1 accepts more drafts than is exact", steps=(1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.3),
        words=((1.0, "lossless"),)),
    Control("max_tokens", means="the longest reply",
        steps=(16, 32, 64, 128, 256, 512, 1024, 2048, 4096)),
    Control("thinking", means="whether the model thinks first; auto: its template's default", by_template=True),
    Control("when_full", command="context"),
    Control("system", "system prompt", takes="a text", means="instructions to the model; enter edits them",
        words=(("", OFF),), form=True),
    Control("context", takes="a whole number of tokens, or auto", means="tokens of prompt and reply; enter to type"),
    Control("rejected", means="how finished replies show rejected drafts"),
)  # fmt: skip
"""How controls are shown, in their order, where that does not follow from the table of settings."""
_NO_CONTROL = (
    "presence_penalty", "frequency_penalty", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "xtc_threshold",
    "target", "draft", "tokenizer", "chat_template", "slots", "cache_memory", "cache_type", "dtype", "quantize",
    "device", "keep_cache", "theme", "exports", "reopen", "view", "tips",
)  # fmt: skip
"""Settings without a control: rarely changed, or changed elsewhere."""


def controls() -> tuple[Control, ...]:
    """One control for each setting that has one, by when a change takes effect."""
    shown = {each.name: each for each in _SHOWN}
    rest = [name for name in TABLE if name not in shown and name not in _NO_CONTROL]
    order = (Applies.ROUND, Applies.REQUEST, Applies.START, Applies.SCREEN)
    made = [control(name, shown.get(name)) for name in (*shown, *rest)]
    return tuple(sorted(made, key=lambda each: order.index(each.applies)))


CONTROLS = controls()
BY_NAME = {each.name: each for each in CONTROLS}
BY_COMMAND = {each.command: each for each in CONTROLS if not each.by_template} | {"temperature": BY_NAME["temperature"]}


def gamma_limit(gamma: str) -> str:
    """What a setting of γ, as `gamma_text` names it, allows in each round: γ auto or γ ≤ 4."""
    return f"γ {gamma}" if gamma == AUTO else f"γ ≤ {gamma}"


def sampling_text(sampling: Sampling) -> str:
    """The sampling settings that are not off: temperature 0.6 · top-k 20; greedy, where they are."""
    names = ("temperature",) if sampling.greedy else ("temperature", "top_k", "top_p", "min_p")
    said = [f"{BY_NAME[name].label} {BY_NAME[name].text(sampling)}" for name in names]
    on = {"dry": sampling.dry, "xtc": sampling.xtc}
    changed = (name for name in SAMPLING_NUMBERS[4:] if getattr(sampling, name) != getattr(Sampling(), name))
    used = (name for name in changed if on.get(name[:3], True))
    said += [f"{name.replace('_', ' ')} {getattr(sampling, name):g}" for name in used]
    return " · ".join([*(["greedy"] if sampling.greedy else said[:1]), *(text for text in said[1:] if OFF not in text)])
