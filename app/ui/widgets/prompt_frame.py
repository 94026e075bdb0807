"""Around the composer: its frame with title and state, attachments, and completions."""

from collections.abc import Sequence
from typing import Any

from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget

from specchat.app.chat.attachments import label
from specchat.app.chat.context_meter import Usage
from specchat.app.chat.conversation import Conversation
from specchat.app.chat.tray import completions
from specchat.app.sanitize import escape_controls
from specchat.app.settings.settings import STOP
from specchat.app.storage.attachments import Attachment
from specchat.app.ui import slash
from specchat.app.ui.rendering.figures import context_bar
from specchat.engine import Loading

TITLE_LENGTH = 60
"""Characters of the title that are shown."""
PART_LENGTH = 20
"""Characters of the title, the schema and the system prompt each, where several of them are shown."""
ENGINE_STOPPED = "the engine has stopped"
STOPPING = "stopping…"


class PromptFrame(Vertical):
    """Follows the conversation and the loading of the models; in a replay, it has the name of the trace."""

    def __init__(self, trace: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._trace = trace
        self.editing = ""
        """What is being written, if it is no new prompt."""
        self._state: Loading | str = Loading("import", "starting", None, 0.0)
        self._failed = False
        self.usage: Usage | None = None
        """How full the context is; None where that is not shown."""
        self.when_full = STOP
        """What happens to what does not fit."""
        self._said = (Content(""), Content(""))
        """Above and below the composer."""

    def show_loading(self, state: Loading | str, *, failed: bool) -> None:
        """How far loading has got, or how it ended; `show` says it."""
        self._state, self._failed = state, failed

    def show(self, conversation: Conversation) -> None:
        """Follow this conversation."""
        said = self._of(conversation)
        if not all(map(Content.is_same, said, self._said)):  # to set a title draws the frame again
            self._said = said
            self.border_title, self.border_subtitle = said

    def _of(self, conversation: Conversation) -> tuple[Content, Content]:
        """What is said above and below, as text: not as markup."""
        if self._trace is not None:
            return Content(escape_controls(self._trace)), Content("")
        if self.editing:
            return Content(self.editing), Content("enter sends · esc cancels")
        title = escape_controls(conversation.title)
        named = title if title.strip() else "new chat"
        system = " ".join((conversation.system or "").split())
        parts = [Content(state)] if (state := self._engine_state(conversation)) else []
        if self.usage is not None:
            parts.append(context_bar(self.usage, self.when_full))
        servers = conversation.client.by_server if conversation.client is not None else ()
        set_up = {"schema": conversation.constraint_name, "tools": ", ".join(servers), "system": system}
        others = [f"{name}: {_cut(escape_controls(value), PART_LENGTH)}" for name, value in set_up.items() if value]
        said = " · ".join([_cut(named, PART_LENGTH if others else TITLE_LENGTH), *others])
        return Content(said), Content(" · ").join(parts)

    def _engine_state(self, conversation: Conversation) -> str:
        running = conversation.all_running
        if self._failed:
            return ENGINE_STOPPED
        if running:
            if all(reply.stopping for reply in running):
                return STOPPING
            calling = next((reply.calling.state for reply in running if reply.calling is not None), "")
            return f"{escape_controls(calling) or 'answering'} · esc stops"
        return loading_text(self._state) if isinstance(self._state, Loading) else ""


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def loading_text(loading: Loading) -> str:
    """What is being loaded, and how much of it has been."""
    share = "" if loading.fraction is None else f" {loading.fraction * 100:.0f} %"
    return f"{escape_controls(loading.text)}{share}"


class HintLines(Widget):
    """Lines that are cut to the width; takes no room without any."""

    ALLOW_SELECT = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._shown: tuple[Any, ...] = ()
        """What the lines are made of."""
        self.display = False

    def show_these(self, *shown: Any) -> None:
        """Show other lines; no layout where they are the same, as it would slow down every key."""
        if shown != self._shown:
            self._shown = shown
            self.display = any(shown)
            self.refresh(layout=True)

    def render(self) -> Content:
        """The lines at the current width."""
        width = max(self.content_size.width, 1)
        return Content("\n").join(line.truncate(width, ellipsis=True) for line in self.lines(width))

    def lines(self, width: int) -> list[Content]:
        """The lines for a width."""
        raise NotImplementedError


SIGN, REFUSED = "▤", "✗"
MOST_CHIPS = 4
"""Lines at most."""
OPENS = "  alt+a opens"


class Chips(HintLines):
    """Hidden while nothing is attached. A click opens the list of attachments."""

    def show(self, attachments: Sequence[Attachment], refused: Sequence[str]) -> None:
        """Follow what is attached, and say what cannot be."""
        self.show_these([escape_controls(label(one)) for one in attachments], [*map(escape_controls, refused)])

    def lines(self, width: int) -> list[Content]:
        """A line for each refusal, and one for all that is attached, or for each where they do not fit into one."""
        names, refused = self._shown or ((), ())
        opens = Content.styled(OPENS, "$quiet")
        chips = [Content.styled(f"{SIGN} {name}", "$primary") for name in names]
        if chips and (joined := Content("  ").join(chips)).cell_length + len(OPENS) <= width:
            chips = [joined + opens]
        elif (more := len(chips) - MOST_CHIPS) > 0:
            chips = [*chips[:MOST_CHIPS], Content(f"and {more} more") + opens]
        return [*(Content.styled(f"{REFUSED} {sentence}", "$error") for sentence in refused), *chips]

    async def on_click(self) -> None:
        """Open the list."""
        await self.run_action("app.run('attachments')")


HINTS, BESIDES = range(6, 15), 10
"""Lines of the menu, fewest to most, and lines of the screen that it leaves free where it can."""
USAGE, MEANS = 26, 20
"""Cells of a command, and the fewest of its description, which continues on the next line."""


class CommandHint(HintLines):
    """Hidden unless the text begins with one slash, or a path is begun. Long menus scroll with the highlight."""

    def show(self, menu: Sequence[slash.Entry], marked: int | None, path: str | None = None) -> None:
        """Show the menu with its highlighted entry, or completions of the path at the cursor."""
        if path is not None:
            found = completions(path)
            self.show_these(*((slash.Entry(name), False) for name in found if found != [path]))
        else:
            self.show_these(*((entry, place == marked) for place, entry in enumerate(menu)))

    def lines(self, width: int) -> list[Content]:
        """The entries around the highlighted one that there is room for, and a line with the number of all."""
        count, marked = len(self._shown), next((n for n, (_, is_marked) in enumerate(self._shown) if is_marked), 0)
        entries = [self._lines(entry, width, marked=is_marked) for entry, is_marked in self._shown]
        most = min(max(self.app.size.height - BESIDES, HINTS[0]), HINTS[-1])
        if sum(map(len, entries)) <= most:
            return [line for entry in entries for line in entry]
        room = most - 1
        first = last = marked
        while first > 0 and sum(map(len, entries[first - 1 : marked])) <= room // 2:
            first -= 1
        while last < count and sum(map(len, entries[first : last + 1])) <= room:
            last += 1
        while first > 0 and sum(map(len, entries[first - 1 : last])) <= room:
            first -= 1
        chooses = any(entry.line for entry, _ in self._shown)
        keys = "↑ ↓ move · enter chooses" if chooses else "tab goes through them"
        note = Content.styled(f"  {first + 1}–{last} of {count} · {keys}", "$quiet")
        return [*(line for entry in entries[first:last] for line in entry), note]

    def _lines(self, entry: slash.Entry, width: int, *, marked: bool) -> list[Content]:
        name = Content.styled(entry.name.ljust(USAGE), "$background on $primary" if marked else "$primary")
        first, *others = Content.styled(entry.about, "$quiet").wrap(max(width - 2 - len(name), MEANS))
        indent = " " * (2 + len(name))
        return [Content.assemble("▸ " if marked else "  ", name, first), *(Content(indent) + part for part in others)]
