"""What was read of chats is kept for the next start: of stored chats, on request, until a chat is deleted."""

from pathlib import Path

from specchat.app.paths import kept_folder
from specchat.app.storage.store import Store
from tests.app.stage import WIDE, Stage


async def test_the_stored_chats_are_kept_at_exit_and_no_deleted_one(tmp_path: Path) -> None:
    stage = Stage(tmp_path, keep_cache="on")
    async with stage.started(WIDE) as pilot:
        for _ in range(2):
            await stage.answer(pilot)
            await stage.press(pilot, "ctrl+n")
        chats = [chat.id for chat in stage.store.chats()]
        stage.store.change_chat(chats[0], deleted=True)
    (kept,) = stage.engine.kept
    assert list(kept.values()) == [str(chats[1])]
    assert set(kept) <= {request.request_id for request in stage.engine.submitted}


def test_a_kept_cache_is_deleted_with_its_chat(tmp_path: Path) -> None:
    with Store(tmp_path / "specchat.db") as store:
        chats = [store.create_chat(f"{n}") for n in range(12)]
        folder = kept_folder(store.path) / "model"
        folder.mkdir(parents=True)
        for chat in chats:
            (folder / f"{chat.id}.cache").touch()
        store.change_chat(chats[0].id, title="another")
        store.change_chat(chats[1].id, deleted=True)
    assert {file.stem for file in folder.iterdir()} == {str(chat.id) for chat in chats} - {str(chats[1].id)}
