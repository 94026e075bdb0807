"""The table of actions. Key bindings, the command palette, slash commands and the help screen are built from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from textual.binding import Binding

from specchat.app.chat.exchange import FORMATS
from specchat.app.settings.controls import CONTROLS

COPIES = ("reply", "code", "chat", "thinking")
ANYWHERE, CHAT, REPLAY = "", "chat", "replay"
KEYS, DETAILS = "keys", "details of a reply"
"""Sections of the help screen. The keys of the second work while the details of a reply are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing that the user can do.

    `run` is the path of a method from `actions.actions.Actions`; it is called with `args` and, if the action `takes`
    an argument, with the text after the slash command.
    """

    name: str
    """Its id in the settings file is `chat.` and this name."""
    run: str
    about: str = ""
    args: tuple[object, ...] = ()
    place: str = ANYWHERE
    """Available in a chat, in a replay, or in both."""
    when: str = ""
    """Path of a value from `Actions`: the action is available while this is true."""

    keys: str = ""
    priority: str = ""
    """Keys that work even where the composer uses them."""
    label: str = ""
    """Description of the keys; by default the name."""
    key_display: str | None = None
    footer: int = 0
    """Place in the footer; 0 for none."""
    help: str = KEYS
    """Section of the help screen that lists its keys."""

    title: str = ""
    """Name in the command palette; empty if it is not listed."""
    each: bool = False
    """Whether the palette lists it once for each possible argument."""

    slash: str = ""
    takes: str = ""
    """Placeholder for the argument of its slash command."""
    needs: bool = False
    """Whether the argument is required."""

    @property
    def usage(self) -> str:
        """Its slash command with the placeholder of the argument."""
        return f"/{self.slash} {self.takes}".rstrip()

    def bindings(self) -> Iterator[Binding]:
        """Its keys; with priority first."""
        label = self.label or self.name.replace("-", " ")
        action = f"screen.detail('{self.name}')" if self.help == DETAILS else f"app.run('{self.name}')"
        show = self.footer > 0
        for keys, priority in ((self.priority, True), (self.keys, False)):
            if keys:
                display = self.key_display if show else None
                yield Binding(keys, action, label, show, display, priority=priority, id=f"chat.{self.name}")
                show = False


_SETTINGS = (
    Action(name="context", run="prompt.context", about="context: size, use, what happens when full",
           place=CHAT, priority="alt+c", keys="c", title="Context", slash="context", takes="N|WHAT"),
    Action(name="models", run="models.command", about="target and draft models: load, download, unload", place=CHAT,
           keys="ctrl+backslash,alt+m", footer=15, title="Models", slash="model", takes="TARGET DRAFT"),
    Action(name="cache", run="views.cache", about="what the cache holds, by chat",
           place=CHAT, priority="alt+k", title="Cache", slash="cache"),
    Action(name="draft-model", run="models.load_draft", about="load another draft model, or none",
           slash="draft", takes="NAME|none", needs=True),
    Action(name="unload", run="models.unload", about="free the memory of the models; the next prompt reloads them",
           slash="unload"),
    Action(name="learn", run="learn.command", about="train the draft head on your chats while idle; stop or undo it",
           place=CHAT, title="Learn from chats", slash="learn", takes="stop|undo"),
    Action(name="controls", run="views.controls", about="controls: γ, drafter, sampling, presets", place=CHAT,
           keys="ctrl+o,f9", key_display="^o", footer=14, title="Controls", slash="controls"),
    Action(name="greedy", run="controls.toggle_greedy", about="temperature 0, or back to what it was", place=CHAT,
           priority="alt+g", keys="g", title="Greedy"),
    Action(name="preset", run="controls.use_preset", about="set all controls to a saved preset", place=CHAT,
           title="Preset", each=True, slash="preset", takes="NAME"),
    Action(name="save-preset", run="controls.save_preset", about="save all controls as a preset",
           slash="save", takes="NAME", needs=True),
)  # fmt: skip

_MESSAGES = (
    Action(name="candidates", run="candidates.command", about="N replies to one prompt, to pick from",
           slash="candidates", takes="N PROMPT"),
    Action(name="several-replies", run="candidates.begin", about="2 to 8 replies to one prompt", place=CHAT,
           title="Several replies"),
    Action(name="pick-reply", run="candidates.show", about="show the replies to one prompt again", place=CHAT,
           when="candidates.prompts", title="Pick a reply"),
    Action(name="stop", run="messages.stop", about="stop the reply; its text is kept", place=CHAT,
           when="screen.stoppable", keys="escape", key_display="esc", footer=3, title="Stop"),
    Action(name="new", run="chats.new", about="begin an empty chat", place=CHAT, keys="ctrl+n", title="New chat",
           slash="new"),
    Action(name="messages", run="messages.show", place=CHAT, priority="ctrl+e", label="edit", footer=10,
           title="Messages", slash="messages",
           about="messages: edit, another reply, continue, fork the chat, other versions"),
    *(
        Action(name=name, run="messages.command", args=(name,), about=about, place=CHAT,
               when="screen.conversation.prompts", title=title, slash=name, takes="N")
        for name, title, about in (
            ("edit", "Edit", "write another version of message N, or of the last one"),
            ("regenerate", "Regenerate", "another reply to message N"),
            ("continue", "Continue", "another reply to message N, which continues this reply"),
            ("penalise", "Try again with a penalty", "another reply to message N, with a penalty on repetitions (DRY)"),
            ("fork", "Fork chat", "a new chat with the messages up to N"),
        )
    ),
    Action(name="search", run="chats.search", about="search all chats", place=CHAT, priority="ctrl+k", footer=11,
           title="Search", slash="search", takes="WORDS"),
    Action(name="attach", run="prompt.attach", about="send a text file with the prompt, like @PATH in it",
           slash="attach", takes="PATH", needs=True),
    Action(name="attach-a-file", run="prompt.begin_mention", about="send a text file with the prompt", place=CHAT,
           title="Attach a file"),
    Action(name="attachments", run="prompt.attachments", about="attached files and pastes: open, expand, remove",
           place=CHAT, priority="alt+a", keys="a", title="Attachments", slash="attachments"),
    Action(name="editor", run="prompt.edit", about="write the prompt in your own editor (VISUAL, EDITOR)", place=CHAT,
           priority="alt+e", keys="e", title="Editor", slash="editor"),
    Action(name="system", run="prompt.system", about="system prompt of this chat: a saved one, a text, or off",
           place=CHAT, title="System prompt", slash="system", takes="NAME|TEXT|off"),
    Action(name="system-save", run="prompt.save_system", about="save this chat's system prompt",
           slash="system-save", takes="NAME", needs=True),
    Action(name="system-default", run="prompt.make_default", about="use this chat's system prompt for new chats",
           slash="system-default"),
    Action(name="template", run="prompt.template", about="a saved prompt; a form asks for its {{variables}}",
           place=CHAT, title="Template", each=True, slash="template", takes="NAME"),
    Action(name="template-save", run="prompt.save_template", about="save the last prompt as a template",
           slash="template-save", takes="NAME", needs=True),
    Action(name="chats", run="screen.panes.toggle_chats", place=CHAT, keys="ctrl+b,f2", title="Chats",
           about="chats; there: enter opens, r renames, p pins, d deletes, u undoes"),
    Action(name="pin", run="chats.pin", about="pin this chat at the top of the list, or unpin it", place=CHAT,
           when="screen.conversation.chat", title="Pin chat", slash="pin"),
    Action(name="rename-chat", run="chats.rename", about="give this chat another title", place=CHAT,
           when="screen.conversation.chat", title="Rename chat"),
    Action(name="tag", run="chats.tag", about="add a tag to this chat's title, or remove it; search finds it",
           slash="tag", takes="NAME", needs=True),
    Action(name="delete-chat", run="chats.delete", about="remove this chat from the list", place=CHAT,
           when="screen.conversation.chat", title="Delete chat"),
    Action(name="undo-delete", run="chats.undo_delete", about="restore the chat that was deleted last", place=CHAT,
           when="chats.deleted", title="Undo delete"),
)  # fmt: skip

_READING = (
    Action(name="copy", run="replies.ask_copy", about="copy the reply, a code block, or the chat", keys="f8",
           title="Copy"),
    Action(name="copy-one", run="replies.copy", slash="copy", takes="WHAT",
           about="copy the last reply, its code (code N: one block), its thinking, or the chat"),
    Action(name="markdown", run="views.toggle_markdown", slash="markdown", keys="ctrl+t,f5", title="Markdown",
           about="replies as Markdown, also while they are written, or token by token"),
    Action(name="open-a-link", run="replies.open_link", about="open a link of the visible replies; a click does too",
           priority="alt+o", keys="o", title="Open link", slash="open", takes="N"),
    Action(name="think", run="replies.think", about="whether the model thinks in this chat, or how much",
           slash="thinking", takes="auto|on|off|…"),
    Action(name="switch-thinking", run="replies.switch_thinking", about="switch thinking on or off in this chat",
           place=CHAT, title="Thinking"),
    Action(name="thinking", run="views.toggle_thoughts", about="show or fold the thinking of replies; a click does too",
           priority="alt+t", keys="t", title="Thoughts", slash="thoughts"),
    Action(name="rejected", run="views.next_rejected", keys="ctrl+r,f4", title="Rejected tokens",
           about="rejected drafts of finished replies: folded (┊; a click unfolds one), in place, or hidden"),
    Action(name="watch", run="views.toggle_watch", when="screen.can_switch", keys="ctrl+g,f3", footer=13,
           title="Watch", about="watch speculation: panel, timeline and every draft; or only the chat (remembered)"),
    Action(name="details", run="screen.inspection.toggle", priority="ctrl+l,f6", keys="i", key_display="^l", footer=12,
           title="Details of a reply", when="screen.conversation.prompts",
           about="details of a reply: every token, its round and its times; a click on a token does too"),
    Action(name="setup", run="screen.widgets.panel.fold_setup", priority="f7", title="Setup",
           about="models, device and memory in the panel: show or fold; a click does too"),
    Action(name="side-by-side", run="comparison.side_by_side", about="one prompt in two setups, timed fairly",
           label="side by side", when="make_duet", priority="ctrl+y", keys="f11", title="Side by side"),
    Action(name="jump", run="views.jump", about="show a letter next to each visible message: press one to go there",
           keys="ctrl+right_square_bracket,apostrophe,alt+j"),
    Action(name="export", run="replies.export", about="write the chat to a file", title="Export", each=True,
           when="screen.conversation.prompts", slash="export", takes="|".join(FORMATS), needs=True),
)  # fmt: skip

_DETAILS = (
    Action(name="step", run="screen.stepping.step", about="the next part of a round: drafted, judged, complete",
           keys="s", footer=4, help=DETAILS),
    Action(name="pause", run="screen.stepping.toggle", about="pause between rounds, or resume", keys="p", help=DETAILS),
    Action(name="timeline", run="screen.panes.toggle_timeline", about="the timeline; there: ← → ↑ ↓, z zooms",
           keys="t", footer=5, help=DETAILS),
    Action(name="lines", run="screen.inspection.toggle_lines", about="one round per line, as in Figure 1 of the paper",
           keys="l", footer=6, help=DETAILS),
    Action(name="compare-drafts", run="comparison.drafts", about="which tokens drafter A proposes and B does not",
           label="compare", place=CHAT, keys="c", footer=7, help=DETAILS, title="Compare drafts", slash="drafts",
           takes="A B"),
    Action(name="theory", run="views.theory", about="what the paper predicts for this reply, as plots", keys="h",
           footer=8, help=DETAILS, title="Theory", slash="theory"),
    Action(name="figures", run="views.definitions", about="what each figure means; a click on the panel does too",
           keys="d", footer=9, help=DETAILS, title="Figures"),
)  # fmt: skip

_REPLAY = (
    Action(name="replay-pause", run="screen.stepping.toggle", place=REPLAY, keys="space", label="pause", footer=16),
    Action(name="replay-step", run="screen.stepping.step", place=REPLAY, keys="full_stop", label="step", footer=17),
    Action(name="replay-back", run="screen.stepping.move", args=("scrub", -1), place=REPLAY, keys="left"),
    Action(name="replay-forward", run="screen.stepping.move", args=("scrub", 1), place=REPLAY, keys="right"),
    Action(name="round-back", run="screen.stepping.move", args=("step_back", 1), place=REPLAY, keys="comma"),
    Action(name="next-rejection", run="screen.stepping.move", args=("to_rejection", 1), about="the next rejection",
           place=REPLAY, keys="x", label="rejection", footer=18),
    Action(name="faster", run="screen.stepping.move", args=("faster", 1), place=REPLAY, keys="plus,equals_sign",
           key_display="+", footer=19),
    Action(name="slower", run="screen.stepping.move", args=("faster", -1), place=REPLAY, keys="minus"),
    Action(name="again", run="screen.stepping.move", args=("again", 1), about="play again from the start", place=REPLAY,
           keys="r", footer=20),
)  # fmt: skip

_APP = (
    Action(name="cancel-edit", run="screen.writing.end_edit", when="screen.can_cancel_edit", keys="escape",
           key_display="esc", footer=1),
    Action(name="back", run="screen.back", when="screen.elsewhere", keys="escape", key_display="esc", footer=2),
    Action(name="theme", run="views.use_theme", about="other colours, shown while you choose", title="Theme",
           slash="theme", takes="NAME"),
    Action(name="tour", run="views.tour", about="draft, verify, accept, reject, correct, bonus: one screen each",
           title="Tour", slash="tour"),
    Action(name="save-the-screen", run="replies.save_screen", about="save the screen as an SVG picture",
           priority="alt+p", title="Save picture"),
    Action(name="help", run="views.help", about="keys, commands, and what the colours mean", keys="f1", title="Help",
           slash="help"),
    Action(name="keys", run="views.keys", about="the keys that work here, and their names in the settings file",
           keys="question_mark", key_display="?", footer=21),
    *(
        Action(name=f"copy-code-{n}", run="replies.copy_code", args=(n,), priority=f"alt+{n}", keys=f"{n}")
        for n in range(1, 10)
    ),
    Action(name="quit", run="app.exit", about="quit; everything is stored", title="Quit"),
)  # fmt: skip

_FIXED = (*_SETTINGS, *_MESSAGES, *_READING, *_DETAILS, *_REPLAY, *_APP)
_CONTROLS = tuple(
    Action(
        name=f"set-{each.command}", run="controls.set", args=(each.command,), about=each.means,
        slash=each.command, takes=each.sign, needs=True,
    )
    for each in CONTROLS
    if each.command not in {action.slash for action in _FIXED}
)  # fmt: skip
"""Commands of the controls that have no other one."""
ACTIONS = {action.name: action for action in (*_CONTROLS, *_FIXED)}
_EVERYDAY = ("new", "model", "system", "regenerate", "edit", "copy", "attach", "search", "export", "controls",
             "context", "theme", "help")  # fmt: skip
SLASH_COMMANDS = tuple(
    sorted(
        (action for action in ACTIONS.values() if action.slash),
        key=lambda action: _EVERYDAY.index(action.slash) if action.slash in _EVERYDAY else len(_EVERYDAY),
    )
)
"""The everyday ones first."""


def chat_bindings() -> list[Binding]:
    """All keys of the chat screen: first those in the footer, in its order."""
    ordered = sorted(ACTIONS.values(), key=lambda action: (not action.footer, action.footer))
    return [binding for action in ordered for binding in action.bindings()]
