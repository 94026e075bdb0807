"""Settings that can be changed while specchat runs: values, labels, and when a change takes effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specchat.app.errors import SettingsError
from specchat.app.settings.settings import AUTO, DRAFTERS, REJECTED, THINKING, Settings
from specchat.engine import SAMPLING_NUMBERS, WHEN_FULL, Sampling

Value = str | int | float | None
OFF = "off"


@dataclass(frozen=True, slots=True)
class Control:
    """One preference in the panel of controls, with its own command."""

    name: str
    """The preference in `Settings`."""
    label: str
    command: str
    """The slash command, without its slash."""
    takes: str
    """Valid values, to follow "it takes" in a sentence."""
    means: str
    kind: type
    steps: tuple[Value, ...]
    """Values that the arrow keys step through; none if it is only typed."""
    words: tuple[tuple[Value, str], ...] = ()
    """Values that are shown, and may be typed, as words."""
    live: bool = False
    """Whether a change affects running replies, from their next round on."""
    look: bool = False
    """Whether it only changes how replies are shown: immediately, and not part of presets."""
    by_template: bool = False
    """Whether it needs a switch in the model's chat template: not part of presets, and its command sets it for one
    chat."""
    loads: bool = False
    """Whether a change loads the models again: not part of presets."""
    form: bool = False
    """Whether its command opens a form for it: not part of presets."""

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
            read: Value = self.kind(text)
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


CONTROLS: tuple[Control, ...] = (
    Control("gamma", "γ", "gamma", "a whole number from 0 (no drafting) to 16, or auto",
        "most tokens to draft each round", int, (None, *range(17)), ((None, AUTO),), live=True),
    Control("drafter", "drafter", "drafter", f"one of {', '.join(DRAFTERS)}", "what proposes tokens",
        str, DRAFTERS, live=True),
    Control("temperature", "temperature", "temp", "a number from 0 (greedy) to 5, or auto",
        "0 is greedy, auto the model's own",
        float, (None, 0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0), ((None, AUTO), (0.0, "greedy"))),
    Control("top_k", "top-k", "top-k", "a whole number, off or auto", "keep the N likeliest tokens",
        int, (None, 0, 1, 5, 10, 20, 40, 50, 100, 200), ((None, AUTO), (0, OFF))),
    Control("top_p", "top-p", "top-p", "a number above 0 and at most 1, off or auto",
        "keep the likeliest tokens that make up P",
        float, (None, 1.0, 0.98, 0.95, 0.9, 0.8, 0.7, 0.5, 0.3), ((None, AUTO), (1.0, OFF))),
    Control("min_p", "min-p", "min-p", "a number from 0 to below 1, off or auto",
        "drop tokens below this share of the likeliest",
        float, (None, 0.0, 0.02, 0.05, 0.1, 0.2, 0.4), ((None, AUTO), (0.0, OFF))),
    Control("repetition_penalty", "repetition", "repetition", "a number above 0 and at most 10, off or auto",
        "above 1: tokens that occurred before are less likely",
        float, (None, 1.0, 1.05, 1.1, 1.15, 1.2, 1.3), ((None, AUTO), (1.0, OFF))),
    Control("dry_multiplier", "DRY", "dry", "a number from 0 to 10, off or auto",
        "discourages repeated sequences of tokens", float, (None, 0.0, 0.4, 0.8, 1.2, 1.6), ((None, AUTO), (0.0, OFF))),
    Control("xtc_probability", "XTC", "xtc", "a number from 0 to 1, off or auto", "chance to leave out the top choices",
        float, (None, 0.0, 0.1, 0.25, 0.5, 0.75, 1.0), ((None, AUTO), (0.0, OFF))),
    Control("seed", "seed", "seed", "a whole number, or off for another one each time", "repeats the same random draws",
        int, (None, *range(101)), ((None, OFF),)),
    Control("lenience", "lenience", "lenience", "a number above 0 and at most 1 (lossless)",
        "below 1 accepts more drafts than is exact", float, (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.3), ((1.0, "lossless"),)),
    Control("max_tokens", "max tokens", "max-tokens", "a whole number from 1 on", "the longest reply",
        int, (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)),
    Control("thinking", "thinking", "thinking", f"one of {', '.join(THINKING)}",
        "whether the model thinks first; auto: its template's default", str, tuple(THINKING), by_template=True),
    Control("when_full", "when full", "context", f"one of {', '.join(WHEN_FULL)}",
        "what happens to a chat that is too long", str, WHEN_FULL),
    Control("system", "system prompt", "system", "a text", "instructions to the model; enter edits them",
        str, (), (("", OFF),), form=True),
    Control("context", "context", "context", "a whole number of tokens, or auto",
        "tokens of prompt and reply; enter to type", int, (), ((None, AUTO),), loads=True),
    Control("rejected", "rejected", "rejected", f"one of {', '.join(REJECTED)}",
        "how finished replies show rejected drafts", str, REJECTED, look=True),
)  # fmt: skip
BY_NAME = {control.name: control for control in CONTROLS}
BY_COMMAND = {control.command: control for control in CONTROLS if not control.by_template} | {
    "temperature": BY_NAME["temperature"]
}


def gamma_limit(gamma: str) -> str:
    """What a setting of γ, as `gamma_text` names it, allows in each round: γ auto or γ ≤ 4."""
    return f"γ {gamma}" if gamma == AUTO else f"γ ≤ {gamma}"


def sampling_text(sampling: Sampling) -> str:
    """The sampling settings that are not off: temperature 0.6 · top-k 20; greedy, where they are."""
    names = ("temperature",) if sampling.greedy else ("temperature", "top_k", "top_p", "min_p")
    said = [f"{BY_NAME[name].label} {BY_NAME[name].text(sampling)}" for name in names]
    on = {"dry": sampling.dry, "xtc": sampling.xtc}
    said += [
        f"{name.replace('_', ' ')} {getattr(sampling, name):g}"
        for name in SAMPLING_NUMBERS[4:]
        if getattr(sampling, name) != getattr(Sampling(), name) and on.get(name[:3], True)
    ]
    return " · ".join([*(["greedy"] if sampling.greedy else said[:1]), *(text for text in said[1:] if OFF not in text)])
