"""Rounds: one draft and one verification for all ready rows, and the tokens and records that result."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from specchat.engine.decoding.outcome import Outcome
from specchat.engine.decoding.planner import Planner
from specchat.engine.decoding.proposal import Source
from specchat.engine.decoding.round import Timing, run_round
from specchat.engine.decoding.top_logprobs import unpack
from specchat.engine.events import FinishReason
from specchat.engine.round import Detail, Fate, Proposer, Refused, Round
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.worker.assembly import Assembly
from specchat.engine.worker.notices import Notices
from specchat.engine.worker.plain_passes import PlainPasses
from specchat.engine.worker.requests import Faults, OpenRequests, sentence


class Rounds:
    """Runs rounds and emits their records.

    Args:
        made: what the engine runs with.
        planner: drafts.
        plain_passes: timed in addition to rounds; None for none.
        requests: ended here when a reply is complete.
        faults: ends rows that rounds fail for.
        notices: for performance warnings.
        clock: seconds since the engine started.
    """

    def __init__(
        self,
        made: Assembly,
        planner: Planner,
        plain_passes: PlainPasses | None,
        requests: OpenRequests,
        faults: Faults,
        notices: Notices,
        clock: Callable[[], float],
    ) -> None:
        self._made = made
        self._planner = planner
        self._plain_passes = plain_passes
        self._requests = requests
        self._faults = faults
        self._notices = notices
        self._clock = clock

    def run(self, rows: Sequence[SequenceState]) -> None:
        """One round for rows that are ready."""
        self._faults.run(self._verify, rows)

    def _verify(self, rows: Sequence[SequenceState]) -> None:
        plain_s = self._plain_passes.measure(rows) if self._plain_passes else 0.0
        plan, outcomes, timing = run_round(self._made.target, rows, self._planner)
        self._planner.learn(rows, plan, outcomes, timing.draft, timing.verify)
        if plain_s:
            self._planner.learn_plain(len(rows), plain_s)
        if self._plain_passes:
            plain = not any(plan.proposal.lengths)
            self._plain_passes.learn(len(rows), plain, timing.verify, timing.draft + timing.verify + _rest(timing))
        self._faults.passed()
        if warnings := self._made.performance_warnings():  # a slow shape may be met late
            self._notices.tell(warnings)
        for row, outcome, sources in zip(rows, outcomes, plan.sources, strict=True):
            try:
                self._conclude(row, outcome, sources, timing, len(rows), plain_s)
            except Exception as error:  # its text, its record: nothing that the others share
                self._requests.finish(row, FinishReason.ERROR, sentence(error), keep=False)
        self._planner.learn_rest(len(rows), plan, _rest(timing))

    def _conclude(
        self,
        row: SequenceState,
        outcome: Outcome,
        sources: Sequence[Source],
        timing: Timing,
        rows: int,
        plain_s: float,
    ) -> None:
        model, target = self._made.model, self._made.target
        if outcome.broken:
            target.cache.clear(row.slot)
            message = f"{model.name} computed something that is not a number: try another --dtype"
            self._requests.finish(row, FinishReason.ERROR, message, keep=False)
            return
        added, pieces, reason = commit(row, outcome, model.eos_ids, target.limit(row))
        proposers = tuple(source.proposer(outcome.drafted) for source in sources if outcome.drafted)
        self._planner.drafters.on_accepted(row, added)
        row.outbox.put(
            record(
                row,
                outcome,
                added,
                pieces,
                at=self._clock(),
                draft_s=timing.draft,
                verify_s=timing.verify,
                rest_s=_rest(timing),
                rows=rows,
                plain_s=plain_s,
                proposers=proposers,
            )
        )
        row.rounds += 1
        if reason:
            self._requests.finish(row, reason)


def _rest(timing: Timing) -> float:
    """Seconds of the round so far, without drafting and verification."""
    return time.perf_counter() - timing.started - timing.draft - timing.verify


def commit(
    row: SequenceState, outcome: Outcome, eos: Collection[int], context: int
) -> tuple[list[int], list[str], FinishReason | None]:
    """Add a round's tokens to the row, up to the first that ends the reply.

    Args:
        row: gains the tokens; its `cached` follows.
        outcome: what the round decided.
        eos: tokens that end a reply.
        context: tokens that fit.

    Returns:
        The tokens added, their text pieces, and why the reply ends here (None if it continues).
    """
    added: list[int] = []
    pieces: list[str] = []
    reason: FinishReason | None = None
    row.cached += 1 + outcome.accepted
    for token in (*outcome.drafted[: outcome.accepted], outcome.last):
        row.tokens.append(token)
        added.append(token)
        pieces.append("" if token in eos else row.text.add(token))
        reason = _reason(row, token, eos, context)
        if reason:
            break
    row.cached = min(row.cached, len(row.tokens))
    return added, pieces, reason


def record(
    row: SequenceState,
    outcome: Outcome,
    added: list[int],
    pieces: list[str],
    *,
    at: float,
    draft_s: float,
    verify_s: float,
    rest_s: float,
    rows: int,
    plain_s: float,
    proposers: tuple[Proposer, ...],
) -> Round:
    """The immutable record of the round that `commit` has just added; tokens after the end of the reply are dropped."""
    position = len(row.tokens) - len(added)
    cut = len(added) <= outcome.accepted
    accepted = len(added) if cut else outcome.accepted
    drafted = outcome.drafted[:accepted] if cut else outcome.drafted
    tested = accepted if cut else len(outcome.p)
    if cut:
        fate = None
    elif accepted < tested:
        fate = Fate.CORRECTION
    else:
        fate = Fate.BONUS if drafted else Fate.PLAIN
    return Round(
        request_id=row.request.request_id,
        number=row.rounds,
        position=len(row.tokens) - len(added),
        drafter=row.drafter,
        gamma=outcome.gamma,
        drafted=tuple(drafted),
        p=tuple(outcome.p[:tested]),
        q=tuple(outcome.q[:tested]),
        u=tuple(outcome.u[:tested]),
        beta=tuple(outcome.beta[:tested]),
        accepted=accepted,
        last=None if cut else outcome.last,
        last_fate=fate,
        pieces=(
            *pieces[:accepted],
            *row.text.alternative(drafted[accepted:], after=row.tokens[position + accepted - 1]),
        ),
        last_piece="" if cut else pieces[-1],
        at=at,
        draft_s=draft_s,
        verify_s=verify_s,
        rest_s=rest_s,
        rows=rows,
        detail=_details(row, outcome, tested, cut, fate),
        refused=tuple(
            tuple(Refused(token, row.text.name(token), *chances) for token, *chances in others)
            for others in outcome.refused[:tested]
        ),
        offered=outcome.offered,
        plain_s=plain_s,
        proposers=proposers,
    )


def _details(row: SequenceState, outcome: Outcome, tested: int, cut: bool, fate: Fate | None) -> tuple[Detail, ...]:
    if not outcome.detail or not row.request.detail:
        return ()
    details = unpack(outcome.detail, tested, fate is Fate.CORRECTION, row.text.name, row.request.detail)
    return details[:tested] if cut else details


def _reason(row: SequenceState, token: int, eos: Collection[int], context: int) -> FinishReason | None:
    if token in eos:
        return FinishReason.EOS
    if row.text.stopped:
        return FinishReason.STOP
    if row.repetition is not None and row.repetition.add(token):
        return FinishReason.REPEATS
    if row.emitted >= row.request.max_tokens:
        return FinishReason.LENGTH
    if len(row.tokens) >= context:
        return FinishReason.CONTEXT
    return None
