"""Requests about one token of a reply: its likeliest alternatives, and the top-k lists of target and drafter."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from specchat import engine
from specchat.app.chat.reply import Computed, Reply
from specchat.app.settings.settings import Settings
from specchat.app.sources.source import Source

SAME = 0.05
"""Largest difference between probabilities that is explained by rounding."""
WIDE = 64
"""Requested entries, more than are kept, so that q is known for all tokens of the residual."""
OTHER_PROMPT = "cannot be computed: model, template or an earlier message have changed since this reply"
OTHER_SETTINGS = "with the current settings or weights, which are not those of the reply"


class Question(Protocol):
    """Receives the records of its request."""

    def add(self, record: engine.Record) -> None:
        """Add a record; the last one is a `Finished`."""


class Look:
    """Waits for the likeliest tokens at one place: `then` gets the round with `Round.detail`, and None at the end."""

    def __init__(self, then: Callable[[engine.Round | None], None]) -> None:
        self._then = then

    def add(self, record: engine.Record) -> None:
        """Add an event of the request."""
        if isinstance(record, engine.Round):
            self._then(record)
        elif isinstance(record, engine.Finished):
            self._then(None)


class Saying:
    """Collects an answer, without thinking.

    `then` gets it at the end, and whether it is complete; not if the request failed or was cancelled.
    """

    def __init__(self, then: Callable[[str, bool], None]) -> None:
        self._then, self._text = then, ""

    def add(self, record: engine.Record) -> None:
        """Add an event of the request."""
        if isinstance(record, engine.Round):
            self._text += record.answer
        elif isinstance(record, engine.Finished) and record.reason not in (
            engine.FinishReason.ERROR,
            engine.FinishReason.CANCELLED,
        ):
            left = "" if record.thinking else record.tail
            self._then(self._text + left, record.reason is not engine.FinishReason.LENGTH)


class Questions:
    """The unanswered questions by request."""

    def __init__(self) -> None:
        self._waiting: dict[str, Question] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def asked(self, reply: Reply, token: int) -> bool:
        """Whether a token is being examined."""
        examined = (each for each in self._waiting.values() if isinstance(each, Examination))
        return any(each.reply is reply and each.number == token for each in examined)

    @property
    def saying(self) -> bool:
        """Whether a title is being written."""
        return any(isinstance(question, Saying) for question in self._waiting.values())

    def cancel_titles(self, source: Source) -> None:
        """Cancel the requests for titles."""
        for request_id, question in self._waiting.items():
            if isinstance(question, Saying):
                source.cancel(request_id)

    def ask(self, source: Source, question: Question, request: engine.Request, context: Sequence[int]) -> str | None:
        """Submit a question after these tokens of a reply; return why the source does not take it, if so."""
        self._waiting[request.request_id] = question
        try:
            source.examine(request, context)
        except engine.EngineError as error:
            del self._waiting[request.request_id]
            return str(error)
        return None

    def end(self, sentence: str) -> None:
        """Fail all questions with this sentence."""
        for request_id in list(self._waiting):
            self.add(request_id, engine.Finished(request_id, engine.FinishReason.ERROR, "", sentence, 0.0))

    def add(self, request_id: str, record: engine.Record) -> None:
        """Pass a record to the question it answers."""
        question = self._waiting[request_id]
        if isinstance(record, engine.Finished):
            del self._waiting[request_id]
        question.add(record)


class Examination:
    """Computes the lists of one token by a pass of the target after part of an ended reply, and of the drafter if its
    distribution is not known from the round.

    Args:
        reply: The reply.
        number: The token, by the numbers of `Reply.starts`; not a discarded one, which was not tested.
        size: Entries per list.
    """

    def __init__(self, reply: Reply, number: int, size: int) -> None:
        self.reply, self.number, self._size = reply, number, size
        self._record, self._token = reply.token(number)
        emitted = [token for record in reply.rounds[: reply.round_of(number)] for token in record.emitted]
        self.context = (*emitted, *self._record.drafted[: min(self._token.place, self._record.accepted)])
        """Tokens of the reply before this one."""
        self._prompt_tokens = reply.rounds[0].position
        self._computed = Computed(None, OTHER_PROMPT)
        self._fits = False

    def request(self, settings: Settings, request_id: str, messages: tuple[engine.Message, ...]) -> engine.Request:
        """The request whose first round has the lists, to submit after `context`."""
        made = settings.request(request_id, messages)
        greedy = all(p in (0, 1) for record in self.reply.rounds for p in record.p)
        sampling = self.reply.sampling or made.sampling
        sampling = replace(sampling, temperature=0.0) if greedy else sampling
        drafter, gamma = (self._record.drafter, 1) if self._drafter_decides else ("none", 0)
        made = replace(made, sampling=sampling, drafter=drafter, gamma=gamma, max_tokens=1 + gamma)
        return replace(made, stop=(), detail=WIDE, constraint=self.reply.constraint)

    def add(self, record: engine.Record) -> None:
        """Add an event of that request; at its end the result is in `Reply.computed`."""
        match record:
            case engine.Admitted():
                self._fits = record.prompt_tokens == self._prompt_tokens + len(self.context)
            case engine.Round(number=0) if self._fits and record.detail:
                self._computed = self._compute(record.detail[0])
            case engine.Finished():
                self.fail(record.message)

    def fail(self, sentence: str) -> None:
        """End with the computed lists, or else with the reason for their absence."""
        if self._computed.detail is None and sentence:
            self._computed = Computed(None, f"cannot be computed: {sentence}")
        self.reply.computed[self.number] = self._computed

    @property
    def _place(self) -> int | None:
        """Index of the draft that was tested at this position, if any."""
        if self._token.place < self._record.tested:
            return self._token.place
        return self._record.accepted if self._token.fate is engine.Fate.CORRECTION else None

    @property
    def _drafter_decides(self) -> bool:
        """Whether the drafter's distribution had more than the drafted token."""
        return self._place is not None and self._record.q[self._place] < 1

    def _compute(self, detail: engine.Detail) -> Computed:
        place, note = self._place, ""
        if place is None:
            return Computed(self._cut(replace(detail, draft=(), draft_entropy=0.0, residual=())), note)
        drafted, p, q = self._record.drafted[place], self._record.p[place], self._record.q[place]
        known = {candidate.id: candidate.probability for candidate in detail.draft}
        if not self._drafter_decides or abs(known.get(drafted, 0.0) - q) > SAME:
            # Only the drafted token is known of a drafter without a distribution, or one that now gives another one.
            only = engine.Candidate(drafted, self._record.pieces[place], q)
            detail = replace(detail, draft=(only,), draft_entropy=0.0)
        target = {candidate.id: candidate.probability for candidate in detail.target}
        if p not in (0, 1) and abs(target.get(drafted, 0.0) - p) > SAME and not self._record.refused:
            note = OTHER_SETTINGS
        rejected = place == self._record.accepted and self._record.last is not None
        residual = self._residual(detail, target) if rejected else ()
        return Computed(self._cut(replace(detail, residual=residual)), note)

    def _cut(self, detail: engine.Detail) -> engine.Detail:
        size = self._size
        return replace(detail, target=detail.target[:size], draft=detail.draft[:size], residual=detail.residual[:size])

    def _residual(self, detail: engine.Detail, target: dict[int, float]) -> tuple[engine.Candidate, ...]:
        """norm(max(0, p − q)) of the listed tokens; it sums to 1 − Σ min(p, q) before normalisation."""
        q = {candidate.id: candidate.probability for candidate in detail.draft}
        place = self._record.accepted
        same = self._record.beta[place] if self._drafter_decides else target.get(self._record.drafted[place], 0.0)
        rest = [(c, max(0.0, c.probability - q.get(c.id, 0.0)) / max(1 - same, 1e-9)) for c in detail.target]
        return tuple(c._replace(probability=min(share, 1.0)) for c, share in sorted(rest, key=lambda r: -r[1]) if share)
