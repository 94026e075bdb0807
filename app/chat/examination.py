"""What target and drafter thought at a token of a reply that has ended, computed when asked."""

from __future__ import annotations

from dataclasses import replace

from specchat.app.chat.reply import Reply
from specchat.app.chat.rounds import Computed
from specchat.app.settings.settings import Settings
from specchat.engine import Admitted, Candidate, Detail, Fate, Finished, Message, Record, Request, Round, Sampling

SAME = 0.05
"""Probabilities that differ by no more are the same but for rounding."""
WIDE = 64
"""Entries asked for: more than are kept, so that q is known where the residual is computed."""
OTHER_PROMPT = "cannot be computed: model, template or an earlier message are not those that this reply was made with"
OTHER_SETTINGS = "with the settings or weights of now, which are not those of the reply"


class Examination:
    """One pass of the target, and of the drafter where its list cannot be known without, behind part of a reply.

    Args:
        reply: the reply, which has ended.
        number: the token, by the numbers of `Reply.starts`; not a discarded one, which nobody judged.
        size: entries of a list.
    """

    def __init__(self, reply: Reply, number: int, size: int) -> None:
        self.reply, self.number, self._size = reply, number, size
        self._record, self._token = reply.token(number)
        index = reply.numbered.round_of(number)
        before = [token for record in reply.rounds[:index] for token in record.emitted]
        self.context = (*before, *self._record.drafted[: min(self._token.place, self._record.accepted)])
        """Tokens of the reply before this one."""
        self._prompt_tokens = reply.rounds[0].position
        self._computed = Computed(None, OTHER_PROMPT)
        self._fits = False

    def is_of(self, reply: Reply, number: int) -> bool:
        """Whether this is about that token of that reply."""
        return self.reply is reply and self.number == number

    def request(self, settings: Settings, request_id: str, messages: tuple[Message, ...]) -> Request:
        """The request whose first round has the lists; it is to be submitted behind `context`."""
        made = settings.request(request_id, messages)
        greedy = all(p in (0, 1) for record in self.reply.rounds for p in record.p)
        sampling = Sampling() if greedy else replace(made.sampling, seed=0)
        drafter, gamma = (self._record.drafter, 1) if self._drafter_decides else ("none", 0)
        return replace(
            made, sampling=sampling, drafter=drafter, gamma=gamma, max_tokens=1 + gamma, stop=(), detail=WIDE
        )

    def add(self, record: Record) -> None:
        """Take in an event of that request; with its end the reply gets what was computed."""
        match record:
            case Admitted():
                self._fits = record.prompt_tokens == self._prompt_tokens + len(self.context)
            case Round(number=0) if self._fits and record.detail:
                self._computed = self._finish(record.detail[0])
            case Finished():
                self.fail(record.message)

    def fail(self, sentence: str) -> None:
        """It has ended: the reply gets what there is, or the reason why there is nothing."""
        nothing = self._computed.detail is None and sentence
        self.reply.computed[self.number] = (
            Computed(None, f"cannot be computed: {sentence}") if nothing else self._computed
        )

    @property
    def _place(self) -> int | None:
        """Index of the draft that was tested at this position; None if none was."""
        if self._token.place < self._record.tested:
            return self._token.place
        return self._record.accepted if self._token.fate is Fate.CORRECTION else None

    @property
    def _drafter_decides(self) -> bool:
        """Whether q was more than the one token that was drafted."""
        return self._place is not None and self._record.q[self._place] < 1

    def _finish(self, detail: Detail) -> Computed:
        place, note = self._place, ""
        if place is None:
            return Computed(self._cut(replace(detail, draft=(), draft_entropy=0.0, residual=())), note)
        drafted, p, q = self._record.drafted[place], self._record.p[place], self._record.q[place]
        known = {candidate.id: candidate.probability for candidate in detail.draft}
        if not self._drafter_decides or abs(known.get(drafted, 0.0) - q) > SAME:
            # A draft without doubt is its own list; one that cannot be drawn again is known by its own q alone.
            detail = replace(detail, draft=(Candidate(drafted, self._record.pieces[place], q),), draft_entropy=0.0)
        target = {candidate.id: candidate.probability for candidate in detail.target}
        if p not in (0, 1) and abs(target.get(drafted, 0.0) - p) > SAME and not self._record.refused:
            note = OTHER_SETTINGS
        refused = place == self._record.accepted and self._record.last is not None
        residual = self._residual(detail, target) if refused else ()
        return Computed(self._cut(replace(detail, residual=residual)), note)

    def _cut(self, detail: Detail) -> Detail:
        lists = (part[: self._size] for part in (detail.target, detail.draft, detail.residual))
        target, draft, residual = lists
        return replace(detail, target=target, draft=draft, residual=residual)

    def _residual(self, detail: Detail, target: dict[int, float]) -> tuple[Candidate, ...]:
        """norm(max(0, p − q)) of the tokens that are listed; it sums to 1 − Σ min(p, q) before it is normalised."""
        q = {candidate.id: candidate.probability for candidate in detail.draft}
        place = self._record.accepted
        same = self._record.beta[place] if self._drafter_decides else target.get(self._record.drafted[place], 0.0)
        rest = [(c, max(0.0, c.probability - q.get(c.id, 0.0)) / max(1 - same, 1e-9)) for c in detail.target]
        return tuple(c._replace(probability=min(share, 1.0)) for c, share in sorted(rest, key=lambda r: -r[1]) if share)
