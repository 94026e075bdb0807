"""The replies that are being written, by the request that each of them answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specchat.app.chat.conversation import Conversation, Turn
from specchat.app.chat.reply import Reply
from specchat.app.sources.stepper import Part
from specchat.engine import Baseline, Prefilled, Record, Request, Round, gamma_text


class RunningReplies:
    """Where each running reply stands, and the plain rounds that all of them are measured against."""

    def __init__(self) -> None:
        self.turns: dict[str, tuple[Conversation, Turn]] = {}
        """The conversation and the turn of each, by request."""
        self.baseline = Baseline()

    def make(self, request: Request) -> Reply:
        """The reply to a request, which is not running yet."""
        return Reply(
            request.request_id, drafter=request.drafter, gamma=gamma_text(request.gamma), baseline=self.baseline
        )

    def reply(self, request_id: str) -> Reply:
        """The running reply to this request."""
        _conversation, turn = self.turns[request_id]
        return next(reply for reply in turn.replies if reply.request_id == request_id)

    def storable(self, records: Sequence[Record]) -> list[tuple[Reply, list[Record]]]:
        """What is stored of these records, by the reply it belongs to."""
        of_reply: dict[str, list[Record]] = {}
        for record in records:
            request_id = getattr(record, "request_id", None)
            if request_id in self.turns and not isinstance(record, Prefilled | Request):
                of_reply.setdefault(request_id, []).append(record)
        return [(self.reply(request_id), own) for request_id, own in of_reply.items()]

    def show_steps(self, steps: Iterable[tuple[Round, Part]]) -> None:
        """These rounds are being stepped through, and no others."""
        by_request = {record.request_id: (record, part) for record, part in steps}
        for request_id in self.turns:
            self.reply(request_id).stepping = by_request.get(request_id)

    def follow(self, conversation: Conversation, request: Request) -> None:
        """Add a recorded request to a conversation: its prompt, and the history that the conversation lacks."""
        history = [m for m in request.messages[:-1] if m.role in ("user", "assistant")]
        if not conversation.turns:
            for prompt, reply in zip(history[::2], history[1::2], strict=False):
                conversation.append(Turn(prompt.content, Reply.stored(reply.content, "eos", tuple)))
        last = request.messages[-1].content if request.messages else request.prompt
        turn = Turn(last or f"{len(request.prompt_ids)} token ids", self.make(request))
        conversation.append(turn)
        self.turns[request.request_id] = (conversation, turn)

    def forget(self) -> None:
        """None is running, and nothing is known of plain rounds."""
        self.turns.clear()
        self.baseline = Baseline()
