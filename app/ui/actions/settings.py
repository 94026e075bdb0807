"""Changing the settings while the app runs: controls and presets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specchat.app.errors import AppError
from specchat.app.settings.controls import CONTROLS, Control, Value
from specchat.app.settings.preferences import Preferences
from specchat.app.settings.settings import AUTO, THINKING, Settings
from specchat.app.ui.actions.scope import ActionScope
from specchat.app.ui.notices import STILL_STARTING, say
from specchat.engine import EngineError

NOT_KEPT = "presets are not kept here"


class SettingsActions:
    """What the app does to change its settings. Settings are one immutable value; every change makes another."""

    def __init__(self, scope: ActionScope) -> None:
        self._scope = scope
        self.preferences: Preferences | None = None
        """None where nothing is kept."""
        self._drafting: tuple[str, int | None, bool] = ("", 0, True)
        """Drafter, γ and whether replies are exact, as last shown."""

    @property
    def settings(self) -> Settings | None:
        """What the next reply is made with; None until the app is ready for prompts."""
        return self._scope.requests.settings

    @property
    def controls(self) -> Sequence[Control]:
        """What can be changed with the models that are loaded."""
        return [control for control in CONTROLS if self._scope.offer.thinking_switch or not control.by_template]

    @property
    def presets(self) -> list[str]:
        """The names of the saved presets."""
        return self.preferences.presets.names() if self.preferences else []

    def change(self, control: Control, text: str) -> bool:
        """Set a control to a typed value, say when it takes effect, and keep it; whether the value is valid."""
        try:
            value = control.read(text)
        except AppError as error:
            say(self._scope.app, str(error), "error")
            return False
        return self._put(control, value)

    def change_by(self, control: Control, by: int) -> None:
        """Set a control to its next value, without a notice: who steps through values sees them."""
        if self.settings is not None:
            value = control.step(getattr(self.settings, control.name), by, self._scope.offer.drafters)
            self._put(control, value, quiet=True)

    def use(self, settings: Settings, controls: Sequence[Control]) -> bool:
        """Use these settings, of which these controls have changed; whether they are valid."""
        return self._apply(lambda _: settings, controls)

    def use_preset(self, name: str) -> bool:
        """Set all controls as a preset has them; whether there is one."""
        preferences = self.preferences
        if preferences is None:
            say(self._scope.app, NOT_KEPT, "warning")
            return False
        return self._apply(lambda settings: preferences.presets.apply(name, settings), CONTROLS, f"preset {name}")

    def save_preset(self, name: str) -> bool:
        """Save all controls as they are under a name; whether they could be."""
        if self.preferences is None or self.settings is None:
            say(self._scope.app, NOT_KEPT if self.settings else STILL_STARTING, "warning")
            return False
        try:
            path = self.preferences.presets.save(name, self.settings)
        except AppError as error:
            say(self._scope.app, str(error), "error")
            return False
        say(self._scope.app, f"preset {name} saved · /preset {name} brings it back · {path}")
        return True

    def show(self, settings: Settings) -> None:
        """Show models, drafter and γ at the top."""
        self.show_drafting(settings.drafter, settings.gamma, lossless=settings.sampling().lossless)

    def show_drafting(self, drafter: str | None = None, gamma: int | None = None, *, lossless: bool = True) -> None:
        """The same, as they were recorded; without a drafter, as they were last shown."""
        if drafter is not None:
            self._drafting = (drafter, gamma, lossless)
        drafter, gamma, lossless = self._drafting
        if drafter == AUTO and self._scope.offer.drafters:
            drafter = self._scope.offer.drafters[0]
        self._scope.screen.status.show_models(self._scope.offer.target, drafter, gamma, lossless=lossless)

    def _put(self, control: Control, value: Value, *, quiet: bool = False) -> bool:
        return self._apply(lambda settings: control.put(settings, value), (control,), quiet=quiet)

    def _apply(
        self,
        changed: Callable[[Settings], Settings],
        controls: Sequence[Control],
        notice: str = "",
        *,
        quiet: bool = False,
    ) -> bool:
        """Change the settings, show, store and (unless `quiet`) say it; a value that is invalid changes nothing."""
        before = self.settings
        if before is None:
            say(self._scope.app, STILL_STARTING, "warning")
            return False
        try:
            after = changed(before)
            drafters = self._scope.offer.drafters
            if drafters and after.drafter not in (AUTO, *drafters):
                known = ", ".join((AUTO, *drafters))
                raise EngineError(f"the loaded models have no drafter {after.drafter!r}: choose one of {known}")
            drafting = [c for c in controls if c.live and getattr(before, c.name) != getattr(after, c.name)]
            running = self._scope.requests.running.adjust(after) if drafting else bool(self._scope.requests.replies)
        except (AppError, EngineError) as error:
            say(self._scope.app, str(error), "error")
            return False
        self._scope.requests.settings = after
        self.show(after)
        if before.rejected != after.rejected:
            self._scope.screen.show_rejected(after.rejected)
        if self.preferences is not None:
            self.preferences.remember(after, [control.name for control in controls])
        own = self._scope.screen.conversation.thinking
        if before.thinking != after.thinking and own is not None:
            kept = next(word for word, value in THINKING.items() if value is own)
            say(self._scope.app, f"this chat keeps thinking {kept}, which was set for it: /thinking auto lifts that")
        elif not quiet:
            say(self._scope.app, notice or _sentence(controls[0], after, running=running))
        return True


def _sentence(control: Control, settings: Settings, *, running: bool) -> str:
    """The change, and from when on it counts."""
    if control.look:
        return f"{control.label} {control.text(settings)}"
    when = "round" if control.live else "reply"
    kept = " · the one being written keeps what it began with" if running and not control.live else ""
    idle = control.name == "gamma" and settings.gamma != 0 and settings.drafter == "none"
    nothing = " · but the drafter is none, which drafts nothing: /drafter auto" if idle else ""
    return f"{control.label} {control.text(settings)} · from the next {when} on{kept}{nothing}"
