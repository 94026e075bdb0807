"""Reading replies: thinking that folds, Markdown while it streams, code blocks and links."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.events import Key
from textual.pilot import Pilot

from specchat.app.sanitize import opens_safely
from specchat.app.storage.store import Store
from specchat.engine import Finished, Record, Request, Round
from tests.app.recorded import trace
from tests.app.stage import Stage, lines_of, run
from tests.app.thinking import thinking_trace
from tests.app.views import NARROW, WIDE, reply_of, screen_of

TEXT = """# Title

It costs $5 and $6, or $x_1 + y_2$ and \\(a_b*c*\\): [here](https://x.y/z), https://a.b/c, [bad](file:///etc/passwd)
[i]no markup[/i] <b>no html</b> ![pic](http://i.j/k.png) main.py

1. one
2. two
   ```py
   x = "[red]"
   ```

$$
\\sum_i x_i
$$

| a | b |
|---|---|
| 1 | 2 |

```sh
ls -l
```
"""


def thinking_stage(folder: Path, records: list[Record] | None = None) -> Stage:
    return Stage(folder, records=records or thinking_trace())


def saying(text: str) -> list[Record]:
    """A recorded chat whose replies are this text, a few characters a round."""
    records = [record for record in trace() if not isinstance(record, Round)]
    template = next(record for record in trace() if isinstance(record, Round) and not record.drafted)
    made: list[Record] = []
    for record in records:
        made.append(record)
        if isinstance(record, Request):
            pieces = [text[n : n + 7] for n in range(0, len(text), 7)]
            made += [
                replace(template, request_id=record.request_id, number=n, last_piece=piece, at=9 + n / 10)
                for n, piece in enumerate(pieces)
            ]
    return sorted(made, key=lambda record: (isinstance(record, Finished), isinstance(record, Round | Finished)))


def body(stage: Stage) -> list[str]:
    return [line.strip() for line in lines_of(stage) if line.strip()]


def title_of(stage: Stage) -> str:
    return next(line for line in body(stage) if line[0] in "▸▾")


async def test_thinking_is_folded_while_it_streams_and_opens_by_key_and_by_click(tmp_path: Path) -> None:
    stage = thinking_stage(tmp_path)
    async with stage.started(WIDE, events=8) as pilot:
        assert title_of(stage).startswith("▸ thinking · ")
        assert not any("In Lisbon" in line for line in body(stage))
        await stage.give(pilot)
        figures = reply_of(screen_of(stage)).figures.thought
        assert title_of(stage) == f"▸ thought · {figures.tokens} tokens · {figures.seconds:.1f} s"
        assert not any("In Lisbon" in line for line in body(stage))
        stage.app.post_message(Key("alt+t", "t"))  # as a terminal sends it: the composer could take it for a letter
        await stage.settle(pilot)
        assert screen_of(stage).typed == ""
        assert title_of(stage).startswith("▾ thought")
        assert any("In Lisbon" in line for line in body(stage))
        await stage.press(pilot, "alt+t")
        await stage.click_on(pilot, "▸ thought")
        assert any("In Lisbon" in text for text in body(stage))


async def test_thinking_is_copied_when_asked_for_and_else_left_out(tmp_path: Path) -> None:
    stage = thinking_stage(tmp_path)
    copied: list[str] = []
    async with stage.started(WIDE) as pilot:
        stage.app.copy_to_clipboard = copied.append  # type: ignore[method-assign]
        await stage.answer(pilot, 10)
        await stage.send(pilot, "/copy thinking")
        await stage.give(pilot)
        await stage.send(pilot, "/copy reply")
    thought, answer = copied
    assert thought.startswith("In Lisbon")
    assert answer.startswith("1. Lisbon's")
    assert "think>" not in thought + answer


async def test_the_switch_is_kept_with_its_chat_and_reaches_the_request(tmp_path: Path) -> None:
    stage = thinking_stage(tmp_path)
    async with stage.started(WIDE) as pilot:
        await stage.send(pilot, "/thinking off")
        await stage.answer(pilot)
        assert stage.engine.submitted[-1].thinking is False
        await stage.send(pilot, "/thinking on")
        await stage.answer(pilot, text="Again")
        assert stage.engine.submitted[-1].thinking is True
        await stage.press(pilot, "ctrl+n")
        await stage.answer(pilot, text="Other")
        assert stage.engine.submitted[-1].thinking is None
        await stage.send(pilot, "/thinking maybe")
        assert screen_of(stage).typed == "/thinking maybe"
    with Store(stage.database) as store:
        assert {chat.title: chat.thinking for chat in store.chats()}["Other"] is None
        assert sorted(chat.thinking for chat in store.chats() if chat.thinking is not None) == [True]


async def test_words_for_the_model_are_not_taken_for_commands(tmp_path: Path) -> None:
    stage = thinking_stage(tmp_path)
    async with stage.started(WIDE) as pilot:
        for prompt in ("/no_think Why?", "/hush now", "/think"):
            await stage.answer(pilot, text=prompt)
            assert stage.engine.submitted[-1].messages[-1].content == prompt
        await stage.send(pilot, "/nothing at all")
        assert len(stage.engine.submitted) == 3
        assert screen_of(stage).typed == "/nothing at all"


async def test_markdown_grows_with_the_reply_and_ends_as_it_would_be_opened(tmp_path: Path) -> None:
    stage = thinking_stage(tmp_path, saying(TEXT))
    async with stage.started(WIDE, "ctrl+t") as pilot:
        await stage.answer(pilot, 40)
        assert "Title" in body(stage)
        assert any("$x_1 + y_2$ and \\(a_b*c*\\)" in line for line in body(stage))
        await stage.give(pilot)
        grown = body(stage)
        assert any("py · copy 1" in line for line in grown)
        assert any("sh · copy 2" in line for line in grown)
        assert "[i]no markup[/i] <b>no html</b>" in " ".join(grown)
        await stage.press(pilot, "ctrl+t", "ctrl+t")
        assert body(stage) == grown


async def test_code_is_copied_with_one_key_and_with_a_click(tmp_path: Path) -> None:
    stage = thinking_stage(tmp_path, saying(TEXT))
    copied: list[str] = []
    async with stage.started(WIDE) as pilot:
        stage.app.copy_to_clipboard = copied.append  # type: ignore[method-assign]
        await stage.answer(pilot)
        await stage.press(pilot, "alt+2", "ctrl+t", "alt+1", "alt+9")
        assert copied == ["ls -l", 'x = "[red]"']
        await stage.send(pilot, "/copy code 7")
        await stage.send(pilot, "/copy code 1")
        await stage.click_on(pilot, "copy 2")
        assert copied[2:] == ['x = "[red]"', "ls -l"]


async def test_links_are_opened_by_click_by_key_and_by_command_and_only_pages_and_mails(tmp_path: Path) -> None:
    stage = thinking_stage(tmp_path, saying(TEXT))
    opened: list[str] = []
    async with stage.started(WIDE) as pilot:
        stage.app.open_url = lambda url, **_: opened.append(url)  # type: ignore[method-assign,assignment]
        await stage.answer(pilot)
        await stage.press(pilot, "ctrl+t")
        await stage.press(pilot, "alt+o", "1")
        await stage.send(pilot, "/open 3")
        await stage.send(pilot, "/open 4")
        assert screen_of(stage).typed == "/open 4"
        await stage.click_on(pilot, "https://a.b/c")
        assert opened == ["https://x.y/z", "http://i.j/k.png", "https://a.b/c"]


@pytest.mark.parametrize(
    "address", ["file:///etc/passwd", "javascript:alert(1)", "https://", "http://a\x1b]8;;b", "https://a b", "ssh://x"]
)
def test_what_is_no_page_and_no_mail_is_never_opened(address: str) -> None:
    assert not opens_safely(address)
    assert opens_safely("mailto:a@b.c")


def test_looks_of_markdown_while_it_streams(snap_compare: Any, tmp_path: Path) -> None:
    stage = thinking_stage(tmp_path, saying(TEXT))

    async def answering(stage: Stage, pilot: Pilot[None]) -> None:
        await stage.ready(pilot)
        await stage.press(pilot, "ctrl+t")
        await stage.answer(pilot, 41)

    assert snap_compare(stage.app, terminal_size=NARROW, run_before=run(stage, answering))
