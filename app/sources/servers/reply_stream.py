"""The records of one reply at a server that is observed, timed by the clock of the stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specchat.app.sources.observed import observed_round
from specchat.app.sources.servers.protocol import THINKING, Chunk
from specchat.app.sources.servers.server import Clock
from specchat.engine import MOST_DRAFTED, Admitted, Finished, FinishReason, Round, Step, Totals


class ReplyStream:
    """Counts tokens and measures times while a reply comes.

    Args:
        request_id: the request.
        clock: of the records.
    """

    def __init__(self, request_id: str, clock: Clock) -> None:
        self.request_id = request_id
        self.clock = clock
        self.finished: Finished | None = None
        self.tokens = 0
        """Tokens that have come."""
        self.prompt_tokens = 0
        self._submitted = clock()
        self._admitted = False
        self._thinking = False
        self._rounds = 0
        self._last_at: float | None = None

    def admit(self, prompt_tokens: int | None, reused: int = 0) -> Iterator[Admitted]:
        """The server has begun with the request, if that has not been said."""
        if not self._admitted:
            self._admitted, at = True, self.clock()
            self.prompt_tokens = prompt_tokens or 0
            waited = at - self._submitted
            yield Admitted(self.request_id, self.prompt_tokens, reused, waited, at, thinking=THINKING)

    def text_of(self, chunk: Chunk) -> str:
        """What the chunk adds to the reply; what the server gives apart stands between marks."""
        begins = bool(chunk.thought) and not self._thinking
        ends = self._thinking and bool(chunk.text)
        self._thinking = (self._thinking or begins) and not ends
        before, behind = f"{THINKING.opening}\n" if begins else "", f"\n{THINKING.closing}\n\n" if ends else ""
        return before + chunk.thought + behind + chunk.text

    def round(self, step: Step | None, pieces: Sequence[str]) -> Round:
        """A round that has just come; without a step one token of unknown fate."""
        at = self.clock()
        seconds = 0.0 if self._last_at is None else at - self._last_at
        number, position = self._rounds, self.prompt_tokens + self.tokens
        self._last_at, self._rounds = at, number + 1
        self.tokens += len(pieces)
        return observed_round(self.request_id, number, position, step, pieces, at, seconds)

    def unknown(self, text: str, pieces: Sequence[str], tokens: int | None) -> Iterator[Round]:
        """Text of unknown fate, one round a token.

        Args:
            text: all of it.
            pieces: the texts of its tokens; used if they are the text.
            tokens: how many the reply has with it; None if the server does not count while it answers.
        """
        new = len(pieces) or int(bool(text)) if tokens is None else tokens - self.tokens
        new = min(new, MOST_DRAFTED + 1)  # more never come at once
        if "".join(pieces) != text or len(pieces) != new:
            pieces = [text, *[""] * (new - 1)] if text else [""] * new
        for piece in pieces:
            yield self.round(None, (piece,))

    def finish(self, reason: FinishReason | None) -> None:
        """The server has said why the reply ended, if it has."""
        if reason is not None:
            message = "the server ended the reply with an error" if reason is FinishReason.ERROR else ""
            self.finished = Finished(self.request_id, reason, "", message, self.clock())

    def totals(
        self,
        chunk: Chunk,
        *,
        passes: int | None = None,
        drafted: int | None = None,
        accepted: int | None = None,
        steps: tuple[Step, ...] | None = None,
    ) -> Totals:
        """What the server says at the end, with the counts of a chunk that has them."""
        at, tokens = self.clock(), chunk.tokens
        return Totals(self.request_id, at, chunk.prompt_tokens, tokens, passes, drafted, accepted, steps)
