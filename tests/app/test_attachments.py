"""Texts that are sent along with a prompt: read in any encoding, named in the prompt, put before it."""

import gzip
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.app.chat.attachments import (
    LONGEST_FILE,
    as_block,
    content_of,
    decoded,
    paste_attachment,
    read_text_file,
)
from specchat.app.chat.tray import begun, mention, mentions
from specchat.app.errors import UsageError
from specchat.app.storage.attachments import FILE, Attachment

SWEDISH = "Smörgåsbord på svenska. Grüße aus München, ça va? Ñandú\n" * 3
RUSSIAN = "Привет, мир! Это проверка кодировки.\n" * 4
JAPANESE = "日本語のテキストです。これはテストの文章で、文字コードを判定します。\n" * 4


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        *((SWEDISH, name) for name in ("utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be", "cp1252")),
        *((RUSSIAN, name) for name in ("cp1251", "koi8-r")),
        *((JAPANESE, name) for name in ("shift_jis", "euc_jp")),
        ("plain ascii", "utf-16-le"),
        ("café au lait", "latin-1"),
        ("", "utf-8"),
    ],
)
def test_texts_of_any_encoding_are_read(text: str, encoding: str) -> None:
    assert decoded(text.encode(encoding)) == text


@pytest.mark.parametrize(
    "data",
    [
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"\x7fELF\x02\x01\x01\0", b"%PDF-1.7 text only", b"ab\0cd\0\0" * 50,
        bytes(range(256)) * 8, gzip.compress(b"hello " * 100), b"\xff\xfeodd",
    ],
    ids=["png", "elf", "pdf", "zeros", "all", "gzip", "half"],
)  # fmt: skip
def test_what_is_no_text_is_refused_by_name(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "picture"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"^my picture is not a text file"):
        read_text_file(path, "my picture")


@given(st.binary(max_size=300))
def test_no_bytes_are_too_strange(data: bytes) -> None:
    text = decoded(data)
    assert text is None or isinstance(text, str)


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(LONGEST_FILE + 1)
    os.mkfifo(tmp_path / "pipe")
    for name, sentence in (
        ("missing", "missing cannot be read: No such file"),
        ("", "is not a file"),
        ("pipe", "pipe is not a file"),
        ("big", "big is longer than 4 MiB: give a part of it"),
        ("zero\0", "cannot be read"),
    ):
        with pytest.raises(UsageError, match=sentence) as raised:
            read_text_file(tmp_path / name if name else tmp_path, name)
        assert "\n" not in str(raised.value)


def test_files_are_named_behind_an_at_sign() -> None:
    text = 'see @a.py, (@src/b.py) and @"my file.txt"; not me@mail.com, @ or a@b'
    assert list(mentions(text)) == [("a.py,", "a.py"), ("src/b.py)", "src/b.py"), ("my file.txt",)]
    assert [next(mentions(mention(name)))[0] for name in ("a.py", "my file", "ä ö")] == ["a.py", "my file", "ä ö"]
    assert [begun(text) for text in ("see @sr", "@", '@"my f', "me@x", "@a b")] == ["sr", "", "my f", None, None]


def test_what_the_model_gets_has_blocks_before_the_prompt_and_pastes_in_their_place() -> None:
    code = Attachment(FILE, "a.py", "print(1)\n")
    paste = paste_attachment("one\n[pasted 2 lines · 7 B]\n", ())
    assert paste.name == "[pasted 2 lines · 28 B]"
    prompt = f"Is {paste.name} in @a.py?"
    assert content_of(prompt, (code, paste)) == (
        "a.py:\n```\nprint(1)\n```\n\nIs one\n[pasted 2 lines · 7 B]\n in @a.py?"
    )
    assert content_of("", (code,)) == as_block(code)
    assert as_block(Attachment(FILE, "x.md", "````\ncode\n````")).splitlines()[1] == "`````"
