"""The table of actions. Key bindings, the command palette, slash commands and the help screen are built from it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from textual.binding import Binding

from specchat.app.chat.exchange import FORMATS
from specchat.app.settings.controls import CONTROLS

COPIES = ("reply", "code", "chat", "thinking")
ANYWHERE, CHAT, REPLAY = "", "chat", "replay"
KEYS, DETAILS = "keys", "details of a reply"
"""Sections of the help screen. The keys of the second work while the details of a reply are shown."""


@dataclass(frozen=True, slots=True)
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
    """A single letter works in a replay; of the second section while the details are shown."""
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
    """Name in the command palette; by default its slash command or its name."""
    each: bool = False
    """Whether the palette lists it once for each possible argument."""

    slash: str = ""
    """Its slash command, with a placeholder for the argument if it takes one."""
    needs: bool = False
    """Whether the argument is required."""

    @property
    def command(self) -> str:
        """The name of its slash command."""
        return self.slash.partition(" ")[0]

    @property
    def takes(self) -> bool:
        """Whether its slash command takes an argument."""
        return " " in self.slash

    def bindings(self) -> Iterator[Binding]:
        """Its keys; with priority first."""
        label = self.label or self.name.replace("-", " ")
        show = self.footer > 0
        for keys, priority in ((self.priority, True), (self.keys, False)):
            if keys:
                action = f"screen.letter('{self.name}')" if len(keys) == 1 else f"app.run('{self.name}')"
                display = self.key_display if show else None
                yield Binding(keys, action, label, show, display, priority=priority, id=f"chat.{self.name}")
                show = False


_SETTINGS = (
    Action("context", "prompt.context", "context: size, use, what happens when full", place=CHAT, priority="alt+c",
        title="Context", slash="context N|WHAT"),
    Action("models", "models.command", "target and draft models: load, download, unload", place=CHAT,
        keys="ctrl+backslash,alt+m", footer=15, title="Models", slash="model TARGET DRAFT"),
    Action("cache", "views.cache", "what the cache holds, by chat", place=CHAT, priority="alt+k", title="Cache",
        slash="cache"),
    Action("draft-model", "models.load_draft", "load another draft model, or none", slash="draft NAME|none",
        needs=True),
    Action("unload", "models.unload", "free the memory of the models; the next prompt reloads them", slash="unload"),
    Action("learn", "learn.command", "train the draft head on your chats while idle; stop or undo it", place=CHAT,
        title="Learn from chats", slash="learn stop|undo"),
    Action("controls", "views.controls", "controls: γ, drafter, sampling, presets", place=CHAT, keys="ctrl+o,f9",
        key_display="^o", footer=14, title="Controls", slash="controls"),
    Action("greedy", "controls.toggle_greedy", "temperature 0, or back to what it was", place=CHAT, priority="alt+g",
        title="Greedy"),
    Action("preset", "controls.use_preset", "set all controls to a saved preset", place=CHAT, title="Preset", each=True,
        slash="preset NAME"),
    Action("save-preset", "controls.save_preset", "save all controls as a preset", slash="save NAME", needs=True),
)  # fmt: skip

_MESSAGES = (
    Action("candidates", "candidates.command", "N replies to one prompt, to pick from", slash="candidates N PROMPT"),
    Action("pick-reply", "candidates.show", "show the replies to one prompt again", place=CHAT,
        when="candidates.prompts", title="Pick a reply"),
    Action("stop", "messages.stop", "stop the reply; its text is kept", place=CHAT, when="screen.stoppable",
        keys="escape", key_display="esc", footer=3, title="Stop"),
    Action("new", "chats.new", "begin an empty chat", place=CHAT, keys="ctrl+n", title="New chat", slash="new"),
    Action("messages", "messages.show", "messages: edit, another reply, continue, fork the chat, other versions",
        place=CHAT, priority="ctrl+e", label="edit", footer=10, title="Messages", slash="messages"),
    *(
        Action(name, "messages.command", about, args=(name,), place=CHAT,
            when="screen.conversation.prompts", title=title, slash=f"{name} N")
        for name, title, about in (
            ("edit", "Edit", "write another version of message N, or of the last one"),
            ("regenerate", "Regenerate", "another reply to message N"),
            ("continue", "Continue", "another reply to message N, which continues this reply"),
            ("penalise", "Try again with a penalty", "another reply to message N, with a penalty on repetitions (DRY)"),
            ("fork", "Fork chat", "a new chat with the messages up to N"),
        )
    ),
    Action("search", "chats.search", "search all chats", place=CHAT, priority="ctrl+k", footer=11, title="Search",
        slash="search WORDS"),
    Action("attach", "prompt.attach", "send a text file with the prompt, like @PATH in it", place=CHAT,
        title="Attach a file", slash="attach PATH"),
    Action("attachments", "prompt.attachments", "attached files and pastes: open, expand, remove", place=CHAT,
        priority="alt+a", title="Attachments", slash="attachments"),
    Action("editor", "prompt.edit", "write the prompt in your own editor (VISUAL, EDITOR)", place=CHAT,
        priority="alt+e", title="Editor", slash="editor"),
    Action("system", "prompt.system", "system prompt of this chat: a saved one, a text, or off", place=CHAT,
        title="System prompt", slash="system NAME|TEXT|off"),
    Action("tools", "tools.command", "tools of MCP servers that the model may call in this chat: list, on, off",
        place=CHAT, title="Tools", slash="mcp NAME"),
    Action("schema", "prompt.schema", "replies of this chat follow the JSON schema in a file", place=CHAT,
        slash="schema FILE|off"),
    Action("system-save", "prompt.save_system", "save this chat's system prompt", slash="system-save NAME", needs=True),
    Action("system-default", "prompt.make_default", "use this chat's system prompt for new chats",
        slash="system-default"),
    Action("template", "prompt.template", "a saved prompt; a form asks for its {{variables}}", place=CHAT,
        title="Template", each=True, slash="template NAME"),
    Action("template-save", "prompt.save_template", "save the last prompt as a template", slash="template-save NAME",
        needs=True),
    Action("chats", "screen.panes.toggle_chats", "chats; there: enter opens, r renames, p pins, d deletes, u undoes",
        place=CHAT, keys="ctrl+b,f2", title="Chats"),
    Action("pin", "chats.pin", "pin this chat at the top of the list, or unpin it", place=CHAT,
        when="screen.conversation.chat", title="Pin chat", slash="pin"),
    Action("rename-chat", "chats.rename", "give this chat another title", place=CHAT, when="screen.conversation.chat",
        title="Rename chat"),
    Action("tag", "chats.tag", "add a tag to this chat's title, or remove it; search finds it", slash="tag NAME",
        needs=True),
    Action("delete-chat", "chats.delete", "remove this chat from the list", place=CHAT, when="screen.conversation.chat",
        title="Delete chat"),
    Action("undo-delete", "chats.undo_delete", "restore the chat that was deleted last", place=CHAT,
        when="chats.deleted", title="Undo delete"),
)  # fmt: skip

_READING = (
    Action("copy", "replies.ask_copy", "copy the reply, a code block, or the chat", keys="f8", title="Copy"),
    Action("copy-one", "replies.copy", "copy the last reply, its code (code N: one block), its thinking, or the chat",
        slash="copy WHAT"),
    Action("markdown", "views.toggle", "replies as Markdown, also while they are written, or token by token",
        args=("markdown",), keys="ctrl+t,f5", title="Markdown", slash="markdown"),
    Action("open-a-link", "replies.open_link", "open a link of the visible replies; a click does too", priority="alt+o",
        title="Open link", slash="open N"),
    Action("think", "replies.think", "whether the model thinks in this chat, or how much",
        slash="thinking auto|on|off|…"),
    Action("switch-thinking", "replies.switch_thinking", "switch thinking on or off in this chat", place=CHAT,
        title="Thinking"),
    Action("thinking", "views.toggle", "show or fold thinking, calls and their results; a click does too",
        args=("thoughts",), priority="alt+t", title="Thoughts", slash="thoughts"),
    Action("rejected", "views.next_rejected",
        "rejected drafts of finished replies: folded (┊; a click unfolds one), in place, or hidden", keys="ctrl+r,f4",
        title="Rejected tokens"),
    Action("watch", "views.toggle_watch",
        "watch speculation: panel, timeline and every draft; or only the chat (remembered)", when="screen.can_switch",
        keys="ctrl+g,f3", footer=13, title="Watch"),
    Action("details", "screen.inspection.toggle",
        "details of a reply: every token, its round and its times; a click on a token does too",
        when="screen.conversation.prompts", priority="ctrl+l,f6", keys="i", key_display="^l", footer=12,
        title="Details of a reply"),
    Action("setup", "screen.widgets.panel.fold_setup",
        "models, device and memory in the panel: show or fold; a click does too", priority="f7", title="Setup"),
    Action("side-by-side", "comparison.side_by_side", "one prompt in two setups, timed fairly", when="make_duet",
        priority="ctrl+y", keys="f11", label="side by side", title="Side by side"),
    Action("jump", "views.jump", "show a letter next to each visible message: press one to go there",
        keys="ctrl+right_square_bracket,alt+j"),
    Action("export", "replies.export", "write the chat to a file", when="screen.conversation.prompts", title="Export",
        each=True, slash="export " + "|".join(FORMATS), needs=True),
)  # fmt: skip

_DETAILS = tuple(
    replace(action, help=DETAILS, when="" if action.title else "screen.inspection.shown")
    for action in (
        Action("step", "screen.stepping.step", "the next part of a round: drafted, judged, complete", keys="s",
            footer=4),
        Action("pause", "screen.stepping.toggle", "pause between rounds, or resume", keys="p"),
        Action("timeline", "screen.panes.toggle_timeline", "the timeline; there: ← → ↑ ↓, z zooms", keys="t", footer=5),
        Action("lines", "screen.inspection.toggle_lines", "one round per line, as in Figure 1 of the paper", keys="l",
            footer=6),
        Action("compare-drafts", "comparison.drafts", "which tokens drafter A proposes and B does not", place=CHAT,
            keys="c", label="compare", footer=7, title="Compare drafts", slash="drafts A B"),
        Action("tree", "views.tree", "the JSON of a reply as a tree of values", keys="v", title="Reply as a tree",
            slash="tree"),
        Action("theory", "views.theory", "what the paper predicts for this reply, as plots", keys="h", footer=8,
            title="Theory", slash="theory"),
        Action("figures", "views.definitions", "what each figure means; a click on the panel does too", keys="d",
            footer=9, title="Figures"),
    )
)  # fmt: skip

_REPLAY = (
    Action("replay-pause", "screen.stepping.toggle", place=REPLAY, keys="space", label="pause", footer=16),
    Action("replay-step", "screen.stepping.step", place=REPLAY, keys="full_stop", label="step", footer=17),
    Action("replay-back", "screen.stepping.move", args=("scrub", -1), place=REPLAY, keys="left"),
    Action("replay-forward", "screen.stepping.move", args=("scrub", 1), place=REPLAY, keys="right"),
    Action("round-back", "screen.stepping.move", args=("step_back", 1), place=REPLAY, keys="comma"),
    Action("next-rejection", "screen.stepping.move", "the next rejection", args=("to_rejection", 1), place=REPLAY,
        keys="x", label="rejection", footer=18),
    Action("faster", "screen.stepping.move", args=("faster", 1), place=REPLAY, keys="plus,equals_sign", key_display="+",
        footer=19),
    Action("slower", "screen.stepping.move", args=("faster", -1), place=REPLAY, keys="minus"),
    Action("again", "screen.stepping.move", "play again from the start", args=("again", 1), place=REPLAY, keys="r",
        footer=20),
)  # fmt: skip

_APP = (
    Action("cancel-edit", "screen.writing.end_edit", when="screen.can_cancel_edit", keys="escape", key_display="esc",
        footer=1),
    Action("clear-command", "screen.put", when="screen.can_clear", args=("",), keys="escape", key_display="esc",
        label="clear", footer=1),
    Action("back", "screen.back", when="screen.elsewhere", keys="escape", key_display="esc", footer=2),
    Action("theme", "views.use_theme", "other colours, shown while you choose", title="Theme", slash="theme NAME"),
    Action("tour", "views.tour", "draft, verify, accept, reject, correct, bonus: one screen each", title="Tour",
        slash="tour"),
    Action("save-the-screen", "replies.save_screen", "save the screen as an SVG picture", priority="alt+p",
        title="Save picture"),
    Action("help", "views.help", "keys, commands, and what the colours mean", keys="f1", title="Help", slash="help"),
    Action("keys", "views.keys", "the keys that work here, and their names in the settings file", keys="question_mark",
        key_display="?", footer=21),
    *(
        Action(f"copy-code-{n}", "replies.copy_code", args=(n,), priority=f"alt+{n}")
        for n in range(1, 10)
    ),
    Action("quit", "app.exit", "quit; everything is stored", title="Quit"),
)  # fmt: skip

_FIXED = (*_SETTINGS, *_MESSAGES, *_READING, *_DETAILS, *_REPLAY, *_APP)
_CONTROLS = tuple(
    Action(f"set-{each.command}", "controls.set", each.means, args=(each.command,),
        slash=f"{each.command} {each.sign}", needs=True)
    for each in CONTROLS
    if each.command not in {action.command for action in _FIXED}
)  # fmt: skip
"""Commands of the controls that have no other one."""
ACTIONS = {action.name: action for action in (*_CONTROLS, *_FIXED)}
_EVERYDAY = ("new", "model", "system", "regenerate", "edit", "copy", "attach", "search", "export", "controls",
             "context", "theme", "help")  # fmt: skip
SLASH_COMMANDS = tuple(
    sorted(
        (action for action in ACTIONS.values() if action.slash),
        key=lambda action: _EVERYDAY.index(action.command) if action.command in _EVERYDAY else len(_EVERYDAY),
    )
)
"""The everyday ones first."""


def chat_bindings() -> list[Binding]:
    """All keys of the chat screen: first those in the footer, in its order."""
    ordered = sorted(ACTIONS.values(), key=lambda action: (not action.footer, action.footer))
    return [binding for action in ordered for binding in action.bindings()]
