"""The models there are: target and draft, what they need, whether they fit, downloads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import ClassVar, Protocol

from rich.style import Style
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from specchat.app.sanitize import escape_controls
from specchat.app.sources.pull import Pull, PullState
from specchat.app.ui.keys import named
from specchat.app.ui.widgets.bars import NoticeLine
from specchat.app.ui.widgets.chat_list import KeyList
from specchat.engine import size_text
from specchat.engine.models import KnownModel, free_memory

ROOM = 1.05
"""Peak memory of loading over the size of the weights."""
REFRESH_S = 0.5
KEYS = "enter loads or fetches · d drafts · p pauses, goes on · u unloads · o other: a path or a hub id"
NUMBERS = 9
"""Cells of a size."""
LOOKING = "looking which models there are …"


class Models(Protocol):
    """What can be done with models."""

    @property
    def pulls(self) -> Mapping[str, Pull]:
        """Downloads, by model."""

    @property
    def drafts(self) -> tuple[str, ...]:
        """Those that draft, one by one."""

    @property
    def chosen(self) -> tuple[str, str]:
        """Target and draft."""

    @property
    def loaded_bytes(self) -> int:
        """Memory that loading another model frees."""

    async def known(self) -> list[KnownModel]:
        """Those there are."""

    async def misfit(self, target: KnownModel, draft: KnownModel) -> str:
        """Why one cannot draft for the other."""

    def load(self, target: str, draft: str | None = None) -> bool:
        """Load them; whether that can be begun."""

    def unload(self) -> None:
        """Free their memory."""

    def pull(self, name: str) -> None:
        """Fetch, go on, or pause."""


class ModelsScreen(ModalScreen[None]):
    """A list, and below it what is to be said of the highlighted model."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"models--quiet", "models--chosen", "models--wrong"}
    BINDINGS: ClassVar[list[BindingType]] = named(
        "models",
        Binding("escape", "back", "close", key_display="esc"),
        Binding("d", "draft", "draft"),
        Binding("p", "pull", "fetch or pause"),
        Binding("u", "unload", "unload"),
        Binding("o", "other", "other"),
    )

    def __init__(self, models: Models) -> None:
        super().__init__()
        self._models = models
        self._known: list[KnownModel] = []
        """Those there are; none until that is known."""
        self._misfit: dict[str, str] = {}
        """Why a model cannot draft for the target, by model; empty if it can."""
        self._states: dict[str, PullState] = {}

    def compose(self) -> ComposeResult:
        """The list, what is said of one, and the keys."""
        with Vertical(id="models-frame") as frame:
            frame.border_title = "models"
            frame.border_subtitle = "esc closes"
            yield Static(id="models-head", markup=False)
            yield KeyList(id="models-list", compact=True)
            yield Static(id="models-about", markup=False)
            yield Input(placeholder="a folder, a GGUF file, or organisation/name", compact=True, id="models-other")
            yield Static(KEYS, id="models-keys", markup=False)
            yield NoticeLine()

    def on_mount(self) -> None:
        """Look what there is, now and while something is fetched."""
        self.query_one(Input).display = False
        self.query_one(KeyList).focus()
        self._look()
        self.set_interval(REFRESH_S, self._follow)

    def on_resize(self) -> None:
        """Lines are cut to the width."""
        self._fill()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter, or a click: load it."""
        event.stop()
        model = self._known[event.option_index]
        if model.disk_bytes is None and not model.gone:
            self.action_pull()
        elif self._models.load(model.spec):
            self.dismiss()

    def on_option_list_option_highlighted(self) -> None:
        """Say what there is to say of it."""
        self._about()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Load what was typed."""
        name = event.value.strip()
        if name and self._models.load(name):
            self.dismiss()
        else:
            self.action_back()

    def action_back(self) -> None:
        """From typing to the list, from the list to the chat."""
        field = self.query_one(Input)
        if field.display:
            field.display = False
            self.query_one(KeyList).focus()
        else:
            self.dismiss()

    def action_draft(self) -> None:
        """Let the highlighted model draft, or no longer."""
        if (model := self._highlighted) is not None:
            target = self._models.chosen[0]
            if self._misfit.get(model.spec):
                self.notify(self._misfit[model.spec], severity="error", markup=False)
            elif self._models.load(target, "none" if model.spec in self._models.drafts else model.spec):
                self.dismiss()

    def action_pull(self) -> None:
        """Fetch the highlighted model, or pause."""
        if (model := self._highlighted) is not None:
            if model.disk_bytes is None and not model.gone:
                self._models.pull(model.spec)
                self._follow()
            else:
                self.notify("it is gone" if model.gone else f"{model.spec} is on this machine", markup=False)

    def action_unload(self) -> None:
        """Free the memory."""
        self._models.unload()
        self.dismiss()

    def action_other(self) -> None:
        """Type a path or a hub id."""
        field = self.query_one(Input)
        field.display, field.value = True, ""
        field.focus()

    @property
    def _highlighted(self) -> KnownModel | None:
        place = self.query_one(KeyList).highlighted
        return self._known[place] if place is not None and place < len(self._known) else None

    @work(exclusive=True, group="models-look", exit_on_error=False)
    async def _look(self) -> None:
        self._known = await self._models.known()
        target = next((model for model in self._known if model.spec == self._models.chosen[0]), None)
        self._fill()
        if target is not None:
            pairs = [model for model in self._known if model is not target and model.folder is not None]
            found = await asyncio.gather(*(self._models.misfit(target, model) for model in pairs))
            self._misfit = {model.spec: why for model, why in zip(pairs, found, strict=True)}
            self._fill()

    def _follow(self) -> None:
        """Downloads go on; what has come is a model like the others."""
        states = {name: pull.state for name, pull in self._models.pulls.items()}
        ended = any(state is PullState.DONE is not self._states.get(name) for name, state in states.items())
        self._states = states
        if ended:
            self._look()
        elif states:
            self._fill()

    def _fill(self) -> None:
        listed = self.query_one(KeyList)
        target = self._models.chosen[0]
        place = listed.highlighted
        if place is None:
            place = next((n for n, model in enumerate(self._known) if model.spec == target), 0)
        listed.clear_options()
        listed.add_options([Option(self._line(model)) for model in self._known])
        listed.highlighted = place if self._known else None
        name = self._name_width
        head = f"  {'model':{name}} {'disk':>{NUMBERS}} {'memory':>{NUMBERS}}  "
        self.query_one("#models-head", Static).update(Text(head, self._style("quiet"), no_wrap=True))
        self._about()

    @property
    def _name_width(self) -> int:
        width = self.query_one(KeyList).scrollable_content_region.width or 70
        return max(min(width - 2 * NUMBERS - 26, 48), 14)

    def _line(self, model: KnownModel) -> Text:
        """Sign, name, sizes, and one word about it."""
        drafts = model.spec in self._models.drafts
        sign = "▸ " if model.spec == self._models.chosen[0] else "◂ " if drafts else "  "
        name = Text(escape_controls(model.spec), self._style("chosen") if sign.strip() else "", no_wrap=True)
        if len(name) > self._name_width:  # the end of a path says more
            name = Text("…", name.style) + name[-self._name_width + 1 :]
        name.pad_right(max(self._name_width - name.cell_len, 0))
        disk, memory = ("–" if size is None else size_text(size) for size in (model.disk_bytes, model.memory_bytes))
        word, wrong = self._word(model)
        style = self._style("wrong" if wrong else "quiet")
        sizes = f" {disk:>{NUMBERS}} {memory:>{NUMBERS}}  "
        return Text.assemble((sign, self._style("chosen")), name, (sizes, self._style("quiet")), (word, style))

    def _word(self, model: KnownModel) -> tuple[str, bool]:
        """The most telling thing about a model in a few words, and whether it is in the way of loading it."""
        pull = self._models.pulls.get(model.spec)
        if pull is not None and pull.state in (PullState.RUNNING, PullState.PAUSED):
            share = "" if pull.fraction is None else f" {pull.fraction * 100:.0f} %"
            return ("fetching" if pull.running else "paused") + share, False
        if model.spec == self._models.chosen[0]:
            return "answers", False
        if model.gone:
            return "not there any more", True
        if not self._fits(model):
            return "too large", True
        if pull is not None and pull.state is PullState.FAILED:
            return "not fetched", True
        if model.spec in self._models.drafts:
            return "drafts", False
        if model.disk_bytes is None:
            return "to be fetched", False
        why = self._misfit.get(model.spec)
        return ("" if why is None else "cannot draft" if why else "can draft"), False

    def _about(self) -> None:
        """Sentences about the highlighted model."""
        model = self._highlighted
        if model is None:
            self.query_one("#models-about", Static).update(Text("" if self._known else LOOKING, self._style("quiet")))
            return
        parts = [model.note] if model.note else []
        if model.draft:
            parts.append(f"{model.draft} drafts well for it")
        free = free_memory()
        if model.memory_bytes is not None and free is not None:
            room = free + self._models.loaded_bytes
            fits = "fits" if self._fits(model) else "does not fit"
            parts.append(f"needs {size_text(model.memory_bytes)} of memory, {fits}: {size_text(room)} can be had")
        if model.spec in self._misfit:
            parts.append(self._misfit[model.spec] or "its vocabulary is that of the model that answers: it can draft")
        if (pull := self._models.pulls.get(model.spec)) is not None and pull.text:
            parts.append(pull.text)
        text = Text(escape_controls(" · ".join(parts)), self._style("quiet"))
        self.query_one("#models-about", Static).update(text)

    def _fits(self, model: KnownModel) -> bool:
        free = free_memory()
        return (
            model.memory_bytes is None
            or free is None
            or model.memory_bytes * ROOM <= (free + self._models.loaded_bytes)
        )

    def _style(self, part: str) -> Style:
        return self.get_component_rich_style(f"models--{part}", partial=True)
