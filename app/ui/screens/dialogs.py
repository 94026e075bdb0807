"""Small dialogs: choose one of several options, the context, a chat's title, a system prompt, template variables."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Key
from textual.screen import ModalScreen, Screen, ScreenResultType
from textual.widget import Widget
from textual.widgets import Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from specchat.app.chat.context_meter import Usage
from specchat.app.errors import AppError
from specchat.app.sanitize import clean_prompt, escape_controls
from specchat.app.settings.named_files import NamedTexts
from specchat.app.ui.action_table import ACTIONS
from specchat.app.ui.keys import CHAT, registered
from specchat.app.ui.rendering.figures import EMPTY, FULL, GOES, context_rows
from specchat.app.ui.widgets.chat_list import KeyList
from specchat.app.ui.widgets.composer import WrappedArea
from specchat.app.ui.widgets.key_bar import KeyBar
from specchat.engine import WHEN_FULL

ALWAYS = ("keys", "help", "save-the-screen")
"""Actions whose keys work on every screen."""
LETTERS = "asdfghjklqwertyuiopzxcvbnm"
"""Letters to jump by, the home row first."""
CELLS = 24
"""Width of a bar that shows a share of the context."""
_Frame = TypeVar("_Frame", bound=Widget)


def framed(frame: _Frame, title: str, subtitle: str) -> _Frame:
    """Give a widget a title and a subtitle in its border."""
    frame.border_title, frame.border_subtitle = title, subtitle
    return frame


class SubScreen(Screen[ScreenResultType]):
    """A screen over the chat, with the keys that work on all screens."""

    BINDINGS = registered(CHAT, *(binding for name in ALWAYS for binding in ACTIONS[name].bindings()))

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        """Close the screen; a second key that was typed before it closed does nothing."""
        return super().dismiss(result) if self.is_active else AwaitComplete()


class Dialog(SubScreen[ScreenResultType], ModalScreen[ScreenResultType]):
    """A modal screen; its keys cover the keys of the screen below."""

    def on_mount(self) -> None:
        """Show the keys."""
        self.mount(KeyBar())


class ChoiceScreen(Dialog[int | None]):
    """Returns the index of the chosen option, or None.

    Args:
        title: of the dialog.
        options: each a name, and a description that may be empty.
        sentence: shown above the options.
        chosen: index of the option that is highlighted at first.
    """

    BINDINGS = registered("choice", Binding("escape", "dismiss", "cancel", key_display="esc"))

    def __init__(self, title: str, options: Sequence[tuple[str, str]], sentence: str = "", chosen: int = 0) -> None:
        super().__init__(classes="dialog")
        self._title, self._options, self._sentence, self._chosen = title, options, sentence, chosen

    def compose(self) -> ComposeResult:
        """A header and the list, in a frame."""
        numbers = "1" if len(self._options) == 1 else f"1–{min(len(self._options), 9)}"
        with framed(Vertical(id="choice"), self._title, f"{numbers} or enter chooses · esc cancels"):
            yield from self.header()
            lines = (
                Content.assemble((f"{number} ", "bold $primary"), name, "  ", (about, "$quiet"))
                for number, (name, about) in enumerate(self._options, start=1)
            )
            yield OptionList(*map(Option, lines), id="choice-list", compact=True)

    def header(self) -> Iterable[Widget]:
        """Widgets above the options."""
        if self._sentence:
            yield Static(self._sentence, id="choice-sentence")

    def on_mount(self) -> None:
        """Highlight an option."""
        options = self.query_one(OptionList)
        options.highlighted = self._chosen
        options.focus()

    def on_key(self, event: Key) -> None:
        """A number chooses at once."""
        if event.key.isdecimal() and 0 < int(event.key) <= len(self._options):
            event.stop()
            self.dismiss(int(event.key) - 1)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter, or a click."""
        self.dismiss(event.option_index)


class ContextScreen(ChoiceScreen):
    """Shows how full the context is; returns the index in `WHEN_FULL` of what to do when it is full, or None."""

    BINDINGS = [Binding("alt+c", "dismiss", "close", show=False)]  # noqa: RUF012

    def __init__(self, usage: Usage | None, when_full: str) -> None:
        options = [(f"{'●' if name == when_full else '○'} {name:<11}", GOES[name]) for name in WHEN_FULL]
        super().__init__("context", options, chosen=WHEN_FULL.index(when_full))
        self._usage = usage

    def header(self) -> Iterable[Widget]:
        """A line for each part of the context."""
        yield Static(self._parts(), id="context-parts")
        yield Static("when it is full", id="context-heading")

    def _parts(self) -> Content:
        usage = self._usage
        if usage is None:
            return Content.styled("The models are being loaded; the size of the context is known after that.", "$quiet")
        lines = []
        for name, tokens in [*context_rows(usage), ("context", usage.context)]:
            cells = min(round(CELLS * tokens / usage.context), CELLS)
            bar = (FULL * cells, "$primary"), (EMPTY * (CELLS - cells), "$faint")
            lines.append(Content.assemble((f"{name:<19}", "$quiet"), f"{tokens:>9,}  ", *bar))
        if usage.room <= 0:
            lines.append(Content(f"{-usage.room:,} tokens too many" if usage.room else "no room for a reply"))
        return Content("\n").join(lines)


class ThemeScreen(ChoiceScreen):
    """Shows each highlighted theme; returns the index of the chosen one, or None."""

    def __init__(self, names: Sequence[str], present: str) -> None:
        super().__init__("theme", [(name, "") for name in names], chosen=names.index(present))

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Show it."""
        self.app.theme = self._options[event.option_index][0]


class RenameScreen(Dialog[str | None]):
    """Returns the new title of a chat, empty for its first words, or None."""

    BINDINGS = registered("rename", Binding("escape", "dismiss", "cancel", key_display="esc"))

    def __init__(self, title: str) -> None:
        super().__init__(classes="dialog")
        self._title = title

    def compose(self) -> ComposeResult:
        """One line of input in a frame."""
        with framed(Vertical(id="rename"), "rename chat", "enter saves · empty: its first words · esc cancels"):
            yield Input(escape_controls(self._title), placeholder="title", compact=True, select_on_focus=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return the title, which may be empty."""
        self.dismiss(" ".join(clean_prompt(event.value).split()))


class SystemScreen(Dialog[str | None]):
    """Returns the new system prompt of a chat, or None. Prompts are saved, chosen and deleted below it.

    Args:
        text: The present one.
        saved: The saved ones; None if they are not kept.
    """

    BINDINGS = registered(
        "form",
        Binding("escape", "dismiss", "cancel", key_display="esc"),
        Binding("ctrl+s", "keep", "keep", key_display="^s", priority=True),
        Binding("d,delete", "remove", "delete", show=False),
    )

    def __init__(self, text: str, saved: NamedTexts | None) -> None:
        super().__init__(classes="dialog")
        self._area = WrappedArea(escape_controls(text), id="form-text", compact=True)
        self._saved, self._names = saved, KeyList(id="form-names", compact=True)

    def compose(self) -> ComposeResult:
        """A text area above the saved prompts and a field for a name."""
        with framed(Vertical(id="form"), "system prompt of this chat", "^s uses it · esc cancels"):
            yield self._area
            if self._saved is not None:
                yield Label("saved · tab goes there · enter takes one, d deletes it", id="form-saved")
                yield self._names
                yield Input(placeholder="tab, a name and enter save it", compact=True)

    def action_keep(self) -> None:
        """Use the text."""
        self.dismiss(self._text)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Take a saved prompt."""
        self._with_saved(lambda saved: self._put(saved.read(str(event.option.prompt))))
        self._area.focus()

    def action_remove(self) -> None:
        """Delete a saved prompt; its text is in the text area then."""
        if self._names.has_focus and (option := self._names.highlighted_option) is not None:
            self._with_saved(lambda saved: self._put(saved.remove(str(option.prompt))))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Save the text under a name."""
        if self._with_saved(lambda saved: saved.save(event.value.strip(), self._text)):
            event.input.clear()

    @property
    def _text(self) -> str:
        return clean_prompt(self._area.text).strip()

    def _put(self, text: str) -> None:
        """Replace the text, which can be undone."""
        self._area.replace(escape_controls(text), (0, 0), self._area.document.end)

    def _list(self) -> None:
        self._names.set_options(self._saved.names() if self._saved is not None else ())
        self._names.highlighted = 0 if self._names.option_count else None
        for widget in self.query("#form-saved, #form-names"):
            widget.display = self._names.option_count > 0

    on_mount = _list

    def _with_saved(self, change: Callable[[NamedTexts], object]) -> bool:
        """Do something with the saved prompts and show them; if that fails, show why, and return False."""
        assert self._saved is not None
        try:
            change(self._saved)
        except AppError as error:
            self.query_one("#form").border_subtitle = str(error)
            return False
        self._list()
        return True


class TemplateScreen(Dialog[dict[str, str] | None]):
    """Returns a value for each variable of a template, or None."""

    BINDINGS = registered("form", Binding("escape", "dismiss", "cancel", key_display="esc"))

    def __init__(self, title: str, names: Sequence[str]) -> None:
        super().__init__(classes="dialog")
        self._title, self._names = title, names

    def compose(self) -> ComposeResult:
        """A line of input for each variable."""
        with framed(VerticalScroll(id="form", can_focus=False), self._title, "enter continues · esc cancels"):
            for name in self._names:
                yield Label(name)
                yield Input(name=name, compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go to the first empty field; return the values if all are filled."""
        fields = list(self.query(Input))
        empty = next((field for field in fields if not field.value.strip()), None)
        if empty is None:
            self.dismiss({str(field.name): clean_prompt(field.value) for field in fields})
        elif empty is event.input:
            self.query_one("#form").border_subtitle = f"{empty.name} is empty"
        else:
            empty.focus()


class JumpScreen(Dialog[str | None]):
    """Returns the letter that was pressed, or None for any other key; the chat below it stays visible."""

    def on_key(self, event: Key) -> None:
        """Close with the first key."""
        event.stop()
        event.prevent_default()
        self.dismiss(event.character if event.character and event.character in LETTERS else None)

    def on_click(self) -> None:
        """Close with a click."""
        self.dismiss(None)
