"""The app's part that changes how replies are made: controls, presets, and the commands behind a slash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from textual import work

from app import slash
from app.controls import BY_COMMAND, CONTROLS, Control, Value
from app.errors import AppError
from app.keeping import KeepingApp
from app.preferences import Preferences
from app.screens.candidates import CandidatesScreen
from app.screens.choice import ChoiceScreen
from app.screens.controls import ControlsScreen
from app.settings import AUTO, Settings
from engine import EngineError

STARTING = "specchat is still starting: try again in a moment"
MOST_CANDIDATES = 8
WARM = 0.8
"""A temperature at which replies differ and still make sense."""


class SteeringApp(KeepingApp):
    """What the app does to change its settings. Settings are one value; every change makes another."""

    preferences: Preferences | None = None
    """None where nothing is kept."""
    slots = 4
    """Replies that can be written at once."""
    drafters: tuple[str, ...] = ()
    """What the loaded models can draft with; empty until they are loaded."""
    _drafting: tuple[str, int | None, bool] = ("", 0, True)
    """Drafter, γ and whether replies are exact, as last shown."""

    @property
    def settings(self) -> Settings | None:
        """What the next reply is made with; None until the app is ready for prompts."""
        return self.exchange.settings

    # Controls

    def change(self, control: Control, value: Value) -> bool:
        """Set one control, say when it takes effect, and keep it; a value that is none is said and changes nothing."""
        return self._checked(lambda settings: control.put(settings, value), (control,))

    def change_by(self, control: Control, by: int) -> None:
        """Set a control to its next value, quietly: who steps through values sees them."""
        if self.settings is not None:
            value = control.step(getattr(self.settings, control.name), by, self.drafters)
            self._checked(lambda settings: control.put(settings, value), (control,), quiet=True)

    def use_preset(self, name: str) -> bool:
        """Set all controls as a preset has them."""
        preferences = self.preferences
        if preferences is None:
            self.say("presets are not kept here", "warning")
            return False
        return self._checked(lambda settings: preferences.presets.apply(name, settings), CONTROLS, f"preset {name}")

    def save_preset(self, name: str) -> bool:
        """Keep all controls as they are under a name."""
        if self.preferences is None or self.settings is None:
            self.say("presets are not kept here" if self.settings else STARTING, "warning")
            return False
        try:
            path = self.preferences.presets.save(name, self.settings)
        except AppError as error:
            self.say(str(error), "error")
            return False
        self.say(f"preset {name} saved · /preset {name} brings it back · {path}")
        return True

    @property
    def presets(self) -> list[str]:
        """The names of the saved presets."""
        return self.preferences.presets.names() if self.preferences else []

    def show_settings(self, settings: Settings) -> None:
        """Name models, drafter and γ at the top."""
        self.show_drafting(settings.drafter, settings.gamma, lossless=settings.sampling().lossless)

    def show_drafting(self, drafter: str | None = None, gamma: int | None = None, *, lossless: bool = True) -> None:
        """The same, as they were recorded; without a drafter, as they were last shown."""
        if drafter is not None:
            self._drafting = (drafter, gamma, lossless)
        drafter, gamma, lossless = self._drafting
        if drafter == AUTO and self.drafters:
            drafter = self.drafters[0]
        self.chat_screen.show_models(self.target, drafter, gamma, lossless=lossless)

    def _checked(
        self,
        changed: Callable[[Settings], Settings],
        controls: Sequence[Control],
        said: str = "",
        *,
        quiet: bool = False,
    ) -> bool:
        before = self.settings
        if before is None:
            self.say(STARTING, "warning")
            return False
        try:
            after = changed(before)
            if self.drafters and after.drafter not in (AUTO, *self.drafters):
                known = ", ".join((AUTO, *self.drafters))
                raise EngineError(f"the loaded models have no drafter {after.drafter!r}: choose one of {known}")
            drafting = [c for c in controls if c.live and getattr(before, c.name) != getattr(after, c.name)]
            running = self.exchange.adjust(after) if drafting else bool(self.exchange.replies)
        except (AppError, EngineError) as error:
            self.say(str(error), "error")
            return False
        self.exchange.settings = after
        self.show_settings(after)
        if self.preferences is not None:
            self.preferences.remember(after, [control.name for control in controls])
        if not quiet:
            self.say(said or _said(controls[0], after, running=running))
        return True

    def action_controls(self) -> None:
        """Open the panel of controls."""
        if self.settings is None:
            self.say(STARTING, "warning")
        elif self.screen is self.chat_screen:
            self.push_screen(ControlsScreen())

    # Commands

    @property
    def words(self) -> slash.Words:
        """What can stand behind the commands that take a word."""
        return {
            "gamma": lambda: (AUTO, *map(str, range(17))),
            "drafter": lambda: (AUTO, *self.drafters),
            **{c.command: self._words_of(c) for c in CONTROLS if c.words and c.name != "gamma"},
            "preset": lambda: self.presets,
            "theme": lambda: sorted(self.available_themes),
            "copy": lambda: slash.COPIES,
            "export": lambda: slash.FORMATS,
        }

    def run_command(self, line: str) -> bool:
        """Do what a line behind a slash says; whether it was understood. What is wrong with it is said."""
        try:
            command, argument = slash.parse(line)
            if command.name in BY_COMMAND:
                control = BY_COMMAND[command.name]
                return self.change(control, control.read(argument))
        except AppError as error:
            self.say(str(error), "error")
            return False
        match command.name:
            case "controls":
                self.action_controls()
            case "preset":
                return self.use_preset(argument)
            case "save":
                return self.save_preset(argument)
            case "candidates":
                return self.candidates_wanted(argument)
            case "theme":
                return self.use_theme(argument)
            case "copy":
                return self.copy_part(argument or "reply")
            case "export":
                return self.export(argument)
            case "new":
                self.chat_screen.action_new_chat()
            case "help":
                self.action_help()
        return True

    def candidates_wanted(self, argument: str) -> bool:
        """Ask for several replies, or show those there are; whether the argument was understood."""
        if not argument:
            return self.show_candidates()
        number, _, prompt = argument.partition(" ")
        if not number.isdecimal() or not 2 <= int(number) <= MOST_CANDIDATES or not prompt.strip():
            self.say(f"/candidates takes a number from 2 to {MOST_CANDIDATES} and a prompt behind it", "error")
            return False
        if self.settings is None:
            self.say(STARTING, "warning")
            return False
        self._ask_candidates(int(number), prompt.strip())
        return True

    @work(exclusive=True, group="asking", exit_on_error=False)
    async def _ask_candidates(self, count: int, prompt: str) -> None:
        settings = self.settings
        if settings is not None and settings.sampling().greedy:
            why = "temperature is 0" if settings.temperature == 0 else "top-k is 1"
            sentence = f"All {count} replies would be the same: {why}, which always takes the likeliest token."
            options = (f"set temperature {WARM:g} and ask", "from now on"), ("ask for one reply", "greedy, as it is")
            chosen = await self.push_screen_wait(ChoiceScreen("several replies", options, sentence))
            if chosen is None:
                self.chat_screen.put(f"/candidates {count} {prompt}")
                return
            if chosen == 1:
                self.chat_screen.ask(prompt)
                return
            warm = replace(settings, temperature=WARM, top_k=0 if settings.top_k == 1 else settings.top_k)
            changed = [BY_COMMAND["temp"], BY_COMMAND["top-k"]][: 2 if settings.top_k == 1 else 1]
            if not self._checked(lambda _: warm, changed):
                return
        self.chat_screen.ask(prompt, count)
        if self.chat_screen.conversation.turns[-1].wanted > 1:  # one alone tells why there are none
            self.show_candidates()

    def show_candidates(self) -> bool:
        """The latest prompt's several replies; whether there are any."""
        turns = [turn for turn in self.chat_screen.conversation.turns if turn.wanted > 1]
        if not turns:
            self.say("this chat has no prompt with several replies: /candidates 4 PROMPT asks for four", "warning")
            return False
        turn = turns[-1]

        def picked(place: int | None) -> None:
            if place is not None:
                self.exchange.pick(turn, turn.candidates[place])
                self.chat_screen.update()
                self.say(f"reply {place + 1} of {len(turn.candidates)} goes on · /candidates shows them again")

        self.push_screen(CandidatesScreen(turn, self.slots), picked)
        return True

    def action_candidates(self) -> None:
        """The latest prompt's several replies."""
        self.show_candidates()

    def use_theme(self, name: str) -> bool:
        """Other colours; `watch_theme` of the app keeps them."""
        if name not in self.available_themes:
            self.say(f"theme {name!r} is not known: choose one of {', '.join(sorted(self.available_themes))}", "error")
            return False
        self.theme = name
        return True

    def action_help(self) -> None:
        """Keys, fates, figures."""
        raise NotImplementedError

    @staticmethod
    def _words_of(control: Control) -> Callable[[], Sequence[str]]:
        return lambda: [word for _, word in control.words]


def _said(control: Control, settings: Settings, *, running: bool) -> str:
    """The change, and from when on it counts."""
    when = "round" if control.live and running else "reply"
    kept = " · the one being written keeps what it began with" if running and not control.live else ""
    idle = control.name == "gamma" and settings.gamma != 0 and settings.drafter == "none"
    nothing = " · but the drafter is none, which drafts nothing: /drafter auto" if idle else ""
    return f"{control.label} {control.text(settings)} · from the next {when} on{kept}{nothing}"
