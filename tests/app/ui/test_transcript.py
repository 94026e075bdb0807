"""The token view draws what has changed and nothing else, and every character in it is harmless."""

from rich.style import Style

from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.chat.reply import Reply
from specchat.app.ui.widgets.transcript import Transcript
from specchat.engine import Fate, Finished, FinishReason, Round
from tests.app.recorded import replied
from tests.app.stage import Stage, lines_of


def round_of(*pieces: str, accepted: int, tested: int, last: str, fate: Fate, number: int = 0) -> Round:
    values = (0.5,) * tested
    ids = tuple(range(len(pieces)))
    return Round(
        "r", number, 10, "ngram", 4, ids, values, values, values, values, accepted, 9, fate, pieces, last,
        number * 0.1 + 0.1, 0.01, 0.05, 0.01, 1,
    )  # fmt: skip


def shown(stage: Stage, *rounds: Round, prompt: str = "?") -> tuple[Transcript, Reply]:
    """The transcript of one reply that is being written."""
    transcript = stage.app.chat_screen.transcript
    reply = replied(rounds)
    stage.app.screen.show(Conversation(path=[Prompt(prompt), reply]))  # type: ignore[attr-defined]
    return transcript, reply


def styled(transcript: Transcript, text: str) -> Style:
    """The style of the first segment with this text."""
    for y in range(transcript.size.height):
        for segment in transcript.render_line(y):
            if segment.text.strip() == text and segment.style is not None:
                return segment.style
    raise AssertionError(f"{text!r} is not shown")


async def test_no_fate_relies_on_colour_alone(stage: Stage) -> None:
    async with stage.started() as pilot:
        transcript, _reply = shown(
            stage,
            round_of(" yes", " no", " never", accepted=1, tested=2, last=" instead", fate=Fate.CORRECTION),
            round_of(" all", accepted=1, tested=1, last=" more", fate=Fate.BONUS, number=1),
            round_of(accepted=0, tested=0, last=" alone", fate=Fate.PLAIN, number=2),
        )
        await stage.settle(pilot)
        looks = {
            text: (bool(s.bold), bool(s.underline), bool(s.strike), bool(s.italic))
            for text in ("yes", "no", "never", "instead", "more", "alone")
            for s in [styled(transcript, text)]
        }
        assert looks == {
            "yes": (False, False, False, False),
            "no": (False, False, True, False),
            "never": (False, False, False, True),
            "instead": (False, True, False, False),
            "more": (True, False, False, False),
            "alone": (False, False, False, False),
        }
        colours = {styled(transcript, text).color for text in ("yes", "no", "instead", "more", "alone")}
        assert len(colours) == 5


def some_rounds() -> list[Round]:
    """Three rounds with a rejection in the first and in the third."""
    return [
        round_of(" yes", " no", " never", accepted=1, tested=2, last=" instead", fate=Fate.CORRECTION),
        round_of(" all", accepted=1, tested=1, last=" more", fate=Fate.BONUS, number=1),
        round_of(" wrong", accepted=0, tested=1, last=" right", fate=Fate.CORRECTION, number=2),
    ]


FOLDED, IN_PLACE = "     yes┊ instead all more┊ right", "     yes no never instead all more wrong right"


async def test_a_finished_reply_folds_what_was_rejected(stage: Stage) -> None:
    async with stage.started() as pilot:
        _transcript, reply = shown(stage, *some_rounds())
        await stage.settle(pilot)
        assert IN_PLACE + "▌" in lines_of(stage)  # while it streams
        reply.add(Finished("r", FinishReason.EOS, "", "", 1.0))
        await stage.settle(pilot)
        assert FOLDED in lines_of(stage)
        for shows in (IN_PLACE, "     yes instead all more right", FOLDED):
            await stage.press(pilot, "ctrl+r")
            assert shows in lines_of(stage)


async def test_a_click_unfolds_one_stretch_and_the_inspector_all(stage: Stage) -> None:
    async with stage.started() as pilot:
        transcript, reply = shown(stage, *some_rounds())
        reply.add(Finished("r", FinishReason.EOS, "", "", 1.0))
        await stage.settle(pilot)
        line = lines_of(stage).index(FOLDED)
        await stage.click_on(pilot, "┊")
        assert lines_of(stage)[line] == "     yes no never instead all more┊ right"
        assert transcript.spot is None  # a mark is no token to look at
        await stage.press(pilot, "f6")
        assert lines_of(stage)[line] == IN_PLACE
        await stage.press(pilot, "f6")
        assert lines_of(stage)[line] == "     yes no never instead all more┊ right"
