"""Changing the settings while the app runs: controls and presets."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from specchat.app.errors import AppError
from specchat.app.settings.controls import BY_COMMAND, BY_NAME, CONTROLS, Control
from specchat.app.settings.settings import AUTO, Settings, thinking_word
from specchat.app.ui.actions.scope import ActionGroup, in_background
from specchat.engine import Applies, EngineError, Sampling

_DRAWN = ("top_k", "top_p", "min_p", "xtc_probability", "seed")
"""What greedy replies do not depend on."""


class SettingsActions(ActionGroup):
    """Actions on the settings, an immutable value that each change replaces.

    Methods that return a bool show a notice and return False if the change is invalid.
    """

    _drafting: tuple[str, int | None, Sampling] = ("", 0, Sampling())
    """Drafter, γ and sampling, as last shown."""
    reload: Callable[[Settings], None]
    """Loads the models again, see `ModelActions.reload`."""
    _temperature: float | None = None
    """The setting before `toggle_greedy`."""

    @property
    def settings(self) -> Settings:
        """The settings of the next reply in this chat."""
        settings = self._scope.settings
        return replace(settings, system=self._scope.conversation.system_in(settings) or "")

    @property
    def own(self) -> Sampling:
        """The model's own sampling settings."""
        return self._scope.loaded.sampling

    @property
    def controls(self) -> Sequence[Control]:
        """Controls that apply to the loaded models."""
        return [control for control in CONTROLS if self._scope.loaded.thinking_switch or not control.by_template]

    @property
    def presets(self) -> list[str]:
        """The names of the saved presets."""
        return self._scope.preferences.presets.names() if self._scope.preferences else []

    def set(self, command: str, text: str) -> bool:
        """A slash command that sets a control."""
        return self.change(BY_COMMAND[command], text)

    def change(self, control: Control, text: str) -> bool:
        """Set a control to a typed value, say when it takes effect, and store it."""
        if control.applies is Applies.START:
            with self._scope.reporting():
                self.reload(control.put(self._scope.settings, control.read(text)))
                return True
            return False
        return self._apply(lambda settings: control.put(settings, control.read(text)), (control,))

    def change_by(self, control: Control, by: int) -> None:
        """Set a control to a neighbouring value, without a notice: the list of controls shows the value."""
        drafters = {"drafter": (AUTO, *self._scope.loaded.drafters)} if self._scope.loaded.drafters else {}
        steps = {"thinking": self._scope.thinking_values, **drafters}
        value = control.step(getattr(self.settings, control.name), by, steps)
        self._apply(lambda settings: control.put(settings, value), (control,), None)

    def toggle_greedy(self) -> None:
        """Set the temperature to 0, or back to what it was; the model's own if it was 0 from the start."""
        before = self._scope.settings.temperature
        after, self._temperature = (self._temperature, None) if before == 0 else (0.0, before)
        control = BY_NAME["temperature"]
        self._apply(lambda settings: control.put(settings, after), (control,))

    def use(self, settings: Settings, controls: Sequence[Control]) -> bool:
        """Use these settings, in which these controls have changed."""
        return self._apply(lambda _: settings, controls)

    def use_preset(self, name: str) -> bool:
        """Set all controls as saved in a preset; without a name, choose."""
        if not name:
            self._choose_preset()
            return True
        preferences = self._scope.stored
        return self._apply(lambda settings: preferences.presets.apply(name, settings), CONTROLS, f"preset {name}")

    @in_background("asking")
    async def _choose_preset(self) -> None:
        if name := await self._scope.choose_name("preset", self.presets, "/save NAME saves all controls as one"):
            self.use_preset(name)

    def save_preset(self, name: str) -> bool:
        """Save all controls as a preset."""
        with self._scope.reporting():
            path = self._scope.stored.presets.save(name, self._scope.settings)
            self._scope.say(f"preset {name} saved · /preset {name} applies it · {path}")
            return True
        return False

    def remember(self, **changed: str) -> None:
        """Change and store settings of the interface."""
        after = self._scope.requests.settings = replace(self._scope.settings, **changed)
        if self._scope.preferences is not None:
            self._scope.preferences.remember(after, changed)

    def show(self, settings: Settings) -> None:
        """Show models, drafter, γ and sampling in the header."""
        self.show_drafting(settings.drafter, settings.gamma, settings.with_model(self.own).sampling())

    def show_drafting(
        self, drafter: str | None = None, gamma: int | None = None, sampling: Sampling | None = None
    ) -> None:
        """Show recorded values in the header; without a drafter, the last shown values."""
        if drafter is not None:
            self._drafting = (drafter, gamma, sampling or Sampling())
        drafter, gamma, sampling = self._drafting
        if drafter == AUTO and self._scope.loaded.drafters:
            drafter = self._scope.loaded.drafters[0]
        self._scope.screen.widgets.show_models(self._scope.loaded.target, drafter, gamma, sampling)

    def _apply(
        self, changed: Callable[[Settings], Settings], controls: Sequence[Control], notice: str | None = ""
    ) -> bool:
        """Change, show and store the settings, with a notice unless that is None; an invalid value changes nothing."""
        try:
            before = self._scope.settings
            after = changed(before)
            self._check_drafter(after.drafter)
            live = [c for c in controls if self._is_live(c) and getattr(before, c.name) != getattr(after, c.name)]
            running = self._scope.requests.running.adjust(after) if live else bool(self._scope.requests.replies)
        except (AppError, EngineError) as error:
            self._scope.report(error)
            return False
        self._scope.requests.settings = after
        self.show(after)
        if before.rejected != after.rejected:
            self._scope.screen.transcript.rejected = after.rejected
        if self._scope.preferences is not None:
            self._scope.preferences.remember(after, [control.name for control in controls])
        own = self._scope.conversation.thinking
        if before.thinking != after.thinking and own is not None:
            kept = f"thinking {thinking_word(own)}"
            self._scope.say(f"this chat keeps its own setting, {kept}: /thinking auto removes it")
        elif notice is not None:
            live_now = self._is_live(controls[0])
            self._scope.say(notice or _sentence(controls[0], after, self.own, live=live_now, running=running))
        return True

    def _is_live(self, control: Control) -> bool:
        """Whether it changes running replies; replies of a server keep their settings."""
        return control.applies is Applies.ROUND and not self._scope.requests.session.attached

    def _check_drafter(self, drafter: str) -> None:
        known = (AUTO, *self._scope.loaded.drafters)
        if len(known) > 1 and drafter not in known:
            raise EngineError(f"the loaded models have no drafter {drafter!r}: choose one of {', '.join(known)}")


def _sentence(control: Control, settings: Settings, own: Sampling, *, live: bool, running: bool) -> str:
    """The change, and when it takes effect."""
    if control.applies is Applies.SCREEN:
        return f"{control.label} {control.text(settings)}"
    when = "round" if live else "reply"
    kept = " · the running reply keeps its settings" if running and not live else ""
    sampling = settings.with_model(own).sampling()
    drawn = control.name in _DRAWN and getattr(sampling, control.name) != getattr(Sampling(), control.name)
    greedy = " · without effect at temperature 0: /temp 0.8" if drawn and sampling.temperature == 0 else ""
    idle = control.name == "gamma" and settings.gamma != 0 and settings.drafter == "none"
    nothing = " · but the drafter is none, which drafts nothing: /drafter auto" if idle else ""
    return f"{control.label} {control.text(settings, own)} · from the next {when} on{kept}{nothing}{greedy}"
