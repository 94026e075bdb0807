"""The list of models: target and draft, memory, vocabularies, downloads."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static

from specchat.app.sources.pull import Pull, PullState
from specchat.app.ui.keys import registered
from specchat.app.ui.screens.dialogs import Dialog, framed
from specchat.app.ui.widgets.bars import NoticeLine
from specchat.app.ui.widgets.chat_list import KeyList
from specchat.engine import size_text
from specchat.engine.models import KnownModel, Machine, recommended, vocabulary_misfit


class Downloads(Protocol):
    """What the screen needs of `actions.models.Downloads`."""

    @property
    def pulls(self) -> Mapping[str, Pull]:
        """Downloads, by model."""

    async def machine(self) -> Machine:
        """What another model could use."""

    def pull(self, name: str) -> None:
        """Start, resume or pause a download."""


class Models(Protocol):
    """What the screen needs of `actions.models.ModelActions`."""

    @property
    def downloads(self) -> Downloads:
        """Downloads of models."""

    @property
    def drafts(self) -> tuple[str, ...]:
        """The draft models."""

    @property
    def chosen(self) -> tuple[str, str]:
        """Target and draft."""

    async def known(self) -> list[KnownModel]:
        """All models."""

    def load(self, target: str, draft: str | None = None) -> bool:
        """Load models; returns whether loading began."""

    def unload(self) -> None:
        """Free their memory."""


def misfits(target: KnownModel, models: Sequence[KnownModel]) -> dict[str, str]:
    """Why other models on this machine cannot draft for the target, by model; empty for a model that can."""
    own, others = target.folder, [(m.spec, m.folder) for m in models if m is not target and m.folder is not None]
    return {spec: vocabulary_misfit(own, folder) if own else "" for spec, folder in others}


REFRESH_S = 0.5
KEYS = "enter loads or downloads · d drafts · p pauses · u unloads · o a path or a hub id"
NUMBERS = 9
"""Width of a size in cells."""
SPEED = 5
"""Width of tokens per second."""
LOOKING = "looking for models …"


class ModelsScreen(Dialog[None]):
    """A list of models, and below it details of the highlighted one."""

    BINDINGS = registered(
        "models",
        Binding("escape", "back", "close", key_display="esc"),
        Binding("d", "draft", "draft"),
        Binding("p", "pull", "download or pause"),
        Binding("u", "unload", "unload"),
        Binding("o", "other", "other"),
    )

    def __init__(self, models: Models) -> None:
        super().__init__(classes="dialog")
        self._models = models
        self._known: list[KnownModel] = []
        """All models; empty until they are known."""
        self._machine = Machine(0, 0, 0)
        self._misfit: dict[str, str] = {}
        """Why a model cannot draft for the target, by model; empty if it can."""
        self._states: dict[str, PullState] = {}

    def compose(self) -> ComposeResult:
        """The list, the details, and the keys."""
        with framed(Vertical(id="models-frame"), "models", "esc closes"):
            yield Static(id="models-head")
            yield KeyList(id="models-list", compact=True)
            yield Static(id="models-about")
            yield Input(placeholder="a folder, a GGUF file, or organisation/name", compact=True, id="models-other")
            yield Static(KEYS, id="models-keys")
            yield NoticeLine()

    def on_mount(self) -> None:
        """Look for models now, and follow the downloads."""
        self.query_one(Input).display = False
        self.query_one(KeyList).focus()
        self._look()
        self.set_interval(REFRESH_S, self._follow)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter, or a click: load or download the model."""
        event.stop()
        model = self._known[event.option_index]
        if model.disk_bytes is None and not model.gone:
            self.action_pull()
        elif self._models.load(model.spec):
            self.dismiss()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Load what was typed."""
        name = event.value.strip()
        if name and self._models.load(name):
            self.dismiss()
        else:
            self.action_back()

    def action_back(self) -> None:
        """Close the field, or the screen."""
        field = self.query_one(Input)
        if field.display:
            field.display = False
            self.query_one(KeyList).focus()
        else:
            self.dismiss()

    def action_draft(self) -> None:
        """Use the highlighted model as the draft model, or stop using it."""
        if (model := self._highlighted) is not None:
            target = self._models.chosen[0]
            if self._misfit.get(model.spec):
                self.notify(self._misfit[model.spec], severity="error")
            elif self._models.load(target, "none" if model.spec in self._models.drafts else model.spec):
                self.dismiss()

    def action_pull(self) -> None:
        """Download the highlighted model, or pause."""
        if (model := self._highlighted) is not None:
            if model.disk_bytes is None and not model.gone:
                self._models.downloads.pull(model.spec)
                self._follow()
            else:
                state = "no longer exists" if model.gone else "is on this machine"
                self.notify(f"{model.spec} {state}")

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
        self._known, self._machine = await asyncio.gather(self._models.known(), self._models.downloads.machine())
        target = next((model for model in self._known if model.spec == self._models.chosen[0]), None)
        self._fill()
        if target is not None:
            self._misfit = await asyncio.to_thread(misfits, target, self._known)
            self._fill()

    def _follow(self) -> None:
        """Show the progress of downloads, and look for models again when one has ended."""
        states = {name: pull.state for name, pull in self._models.downloads.pulls.items()}
        ended = any(state is PullState.DONE is not self._states.get(name) for name, state in states.items())
        self._states = states
        if ended:
            self._look()
        elif states:
            self._fill()

    def _fill(self) -> None:
        listed = self.query_one(KeyList)
        place = listed.highlighted
        if place is None:
            specs = [model.spec for model in self._known]
            place = specs.index(self._models.chosen[0]) if self._models.chosen[0] in specs else 0
        listed.clear_options()
        listed.add_options([self._line(model) for model in self._known])
        listed.highlighted = place if self._known else None
        head = f"  {'model':{self._name_width}} {'disk':>{NUMBERS}} {'memory':>{NUMBERS}} {'tok/s':>{SPEED}}  "
        self.query_one("#models-head", Static).update(Content.styled(head, "$quiet"))
        self._show_details()

    on_resize = _fill

    @property
    def _name_width(self) -> int:
        width = self.query_one(KeyList).scrollable_content_region.width or 70
        return max(min(width - 2 * NUMBERS - SPEED - 27, 48), 14)

    def _line(self, model: KnownModel) -> Content:
        """Marker, name, sizes (an arrow marks a download), expected speed, and a word about the model."""
        sign = "▸" if model.spec == self._models.chosen[0] else "◂" if model.spec in self._models.drafts else " "
        width, name = self._name_width, Content(model.spec)
        if name.cell_length > width:  # the end of a path says more
            name = Content("…") + name[-width + 1 :]
        if sign != " ":
            name = name.stylize("bold $primary")
        stored, memory = ("–" if size is None else size_text(size) for size in (model.disk_bytes, model.memory_bytes))
        disk = f"↓ {size_text(model.download_bytes)}" if model.download_bytes else stored
        speed = model.speed(self._machine)
        sizes = f" {disk:>{NUMBERS}} {memory:>{NUMBERS}} {f'{speed:.0f}' if speed else '–':>{SPEED}}  "
        name = name.pad_right(max(width - name.cell_length, 0))
        return Content.assemble((f"{sign} ", "bold $primary"), name, (sizes, "$quiet"), self._word(model))

    def _word(self, model: KnownModel) -> tuple[str, str]:
        """The most important fact about a model, and its style."""
        pull = self._models.downloads.pulls.get(model.spec)
        if pull is not None and pull.state in (PullState.RUNNING, PullState.PAUSED):
            share = "" if pull.fraction is None else f" {pull.fraction * 100:.0f} %"
            return ("downloading" if pull.running else "paused") + share, "$quiet"
        best = model.spec == recommended(self._known, self._machine)
        if model.spec == self._models.chosen[0]:
            return ("answers, recommended" if best else "answers"), "$quiet"
        if model.gone:
            return "no longer exists", "$error"
        if obstacle := model.obstacle(self._machine):
            return obstacle, "$error"
        if pull is not None and pull.state is PullState.FAILED:
            return "download failed", "$error"
        if model.spec in self._models.drafts:
            return "drafts", "$quiet"
        if best:
            return "★ recommended", "bold $primary"
        if model.disk_bytes is None:
            return "not downloaded", "$quiet"
        why = self._misfit.get(model.spec)
        return ("" if why is None else "cannot draft" if why else "can draft"), "$quiet"

    def _show_details(self) -> None:
        """Show sentences about the highlighted model."""
        model = self._highlighted
        lines = [" · ".join(filter(None, line)) for line in self._details(model)] if model else []
        text = "\n".join(filter(None, lines)) if model else "" if self._known else LOOKING
        self.query_one("#models-about", Static).update(text)

    on_option_list_option_highlighted = _show_details

    def _details(self, model: KnownModel) -> Iterator[tuple[str, ...]]:
        """Sentences of each line: what it is, what it needs, its state."""
        tau = f", τ {model.tau:g} tokens per round expected" if model.tau > 1 else ""
        yield model.note, model.licence, model.draft and f"drafter: {model.draft}{tau}"
        short, speed, needed = model.shortage(self._machine), model.speed(self._machine), model.memory_bytes
        memory = f"needs {size_text(needed)} of memory, {size_text(self._machine.memory)} free" if needed else ""
        download = f"download {size_text(model.download_bytes)}, {size_text(self._machine.disk)} of disk free"
        expected = f"about {speed:.0f} tokens per second expected" if speed else ""
        yield str(short) if short else memory, download if model.download_bytes else "", expected
        pull, misfit = self._models.downloads.pulls.get(model.spec), self._misfit.get(model.spec)
        fits = "has the vocabulary of the target: it can draft" if misfit == "" else misfit or ""
        yield fits, pull.text if pull is not None else ""
