"""Texts whose cache is kept between runs are not read again, and no reply changes, whatever the files are."""

import random
from pathlib import Path

import pytest

from specchat.engine import Engine, Request, Sampling
from specchat.engine.cache import kept_texts
from tests.engine.tiny import admitted, ids_of, said_while_loading, tiny_engine, tiny_model
from tests.engine.worker.test_shared_prefixes import KINDS

CHATS = [tuple(random.Random(n).choices(range(97, 122), k=90)) for n in range(3)]
NAMES = {f"{n} {turn}": f"chat-{n}" for n in range(len(CHATS)) for turn in range(2)}


def turn(engine: Engine, name: str, prompt: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """The prompt with its reply, and how much of it was reused."""
    request = Request(name, prompt_ids=prompt, max_tokens=12, gamma=3, sampling=Sampling(temperature=0.8, seed=1))
    events = list(engine.stream(request))
    return (*prompt, *ids_of(events)), admitted(events).reused_tokens


def chatted(folder: Path, kind: str) -> list[tuple[int, ...]]:
    """Chats of two turns, which are kept."""
    with tiny_engine(kept=folder, **KINDS[kind]()) as engine:  # type: ignore[arg-type]
        firsts = [turn(engine, f"{n} 0", chat)[0] for n, chat in enumerate(CHATS)]
        texts = [turn(engine, f"{n} 1", (*text, 98, 99, 100))[0] for n, text in enumerate(firsts)]
        engine.keep_texts(NAMES)
    return texts


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.cache"))


@pytest.mark.parametrize("kind", ["none", "head", "packed", "packed q8", pytest.param("draft", marks=pytest.mark.slow)])
def test_chats_of_an_earlier_run_are_not_read_again(kind: str, tmp_path: Path) -> None:
    texts = chatted(tmp_path, kind)
    assert [file.name for file in files(tmp_path)] == [f"chat-{n}.cache" for n in range(3)]
    assert all(not path.stat().st_mode & 0o077 for file in files(tmp_path) for path in (file, file.parent))
    with tiny_engine(**KINDS[kind]()) as engine:  # type: ignore[arg-type]
        fresh = [turn(engine, f"{n}", (*text, 101)) for n, text in enumerate(texts)]
    with tiny_engine(kept=tmp_path, **KINDS[kind]()) as engine:  # type: ignore[arg-type]
        again = [turn(engine, f"{n}", (*text, 101)) for n, text in enumerate(texts)]
        assert not any("damaged" in text for text in said_while_loading(engine))
    for (text, reused), (expected, _), known in zip(again, fresh, texts, strict=True):
        assert text == expected
        assert reused >= len(known) - 1


def test_a_damaged_file_is_deleted_and_its_chat_read_again(tmp_path: Path) -> None:
    texts = chatted(tmp_path, "head")
    there = files(tmp_path)
    kept = [bytearray(file.read_bytes()) for file in there]
    kept[0][len(kept[0]) // 2] ^= 1
    for second in (kept[1][:-7], b""):
        for file, data in zip(there, (kept[0], second, kept[2]), strict=True):
            file.write_bytes(data)
        with tiny_engine(kept=tmp_path, **KINDS["head"]()) as engine:  # type: ignore[arg-type]
            (notice,) = said_while_loading(engine)
            assert "damaged" in notice
            reused = [turn(engine, f"{n}", (*text, 101))[1] for n, text in enumerate(texts)]
        assert reused[0] == reused[1] == 0 < reused[2]
        assert [file.name for file in files(tmp_path)] == ["chat-2.cache"]


def test_a_file_that_another_program_deletes_meanwhile_is_no_error(tmp_path: Path) -> None:
    (text, *_) = chatted(tmp_path, "none")
    (files(tmp_path)[0].parent / "gone.cache").symlink_to(tmp_path / "deleted")
    with tiny_engine(kept=tmp_path) as engine:
        assert turn(engine, "again", (*text, 101))[1] >= len(text) - 1
        assert not any("damaged" in said for said in said_while_loading(engine))


def test_another_model_after_a_full_cache_begins_with_an_empty_one(tmp_path: Path) -> None:
    with tiny_engine(kept=tmp_path, cache_memory=1e-9) as engine:  # which has room for two of the chats
        texts = [turn(engine, f"{n} 0", chat)[0] for n, chat in enumerate(CHATS)]
        engine.keep_texts(NAMES)
    kept, found = files(tmp_path), []
    assert kept
    for folder in (tmp_path, None):
        with tiny_engine(tiny_model(seed=5), kept=folder, cache_memory=1e-9) as engine:
            found.append([turn(engine, f"{n}", text) for n, text in enumerate(texts)])
            assert not said_while_loading(engine)
    assert found[0] == found[1]
    assert files(tmp_path) == kept


def test_files_of_another_cache_type_are_not_looked_at(tmp_path: Path) -> None:
    (text, *_), made = chatted(tmp_path, "packed"), KINDS["packed"]()
    for cache_type, reused in (("q8", False), ("f16", True)):
        with tiny_engine(kept=tmp_path, **made | {"cache_type": cache_type}) as engine:  # type: ignore[arg-type]
            assert bool(turn(engine, "again", text)[1]) == reused
            assert not any("damaged" in text for text in said_while_loading(engine))


def test_the_files_that_are_too_many_go_the_oldest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chatted(tmp_path, "none")
    old, size = files(tmp_path)[0].parent.parent / "old", max(file.stat().st_size for file in files(tmp_path))
    files(tmp_path)[0].parent.rename(old)
    monkeypatch.setattr(kept_texts, "MOST_BYTES", 4 * size)
    chatted(tmp_path, "none")
    assert [(file.parent.name == "old", file.stem) for file in files(tmp_path) if file.parent != old] == [
        (False, f"chat-{n}") for n in range(3)
    ]
    assert [file.stem for file in files(tmp_path) if file.parent == old] == ["chat-2"]
    monkeypatch.setattr(kept_texts, "MOST_BYTES", 0)
    chatted(tmp_path, "none")
    assert not files(tmp_path)


def test_a_target_with_recurrent_layers_keeps_nothing(tmp_path: Path) -> None:
    chatted(tmp_path, "hybrid")
    assert not files(tmp_path)
