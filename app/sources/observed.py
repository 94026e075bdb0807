"""Replies of other servers as records, made of what the server reports; and replies with marks around the thinking."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from specchat.engine import Admitted, Fate, Finished, Given, Record, Round, Step, Thinking, Token, Totals, parser_of


class Unmarked:
    """Rewrites the records of a reply without the marks in its text, as the engine writes records.

    Args:
        marks: The marks.
    """

    def __init__(self, marks: Thinking) -> None:
        self._parser = parser_of(marks)

    def given(self, token: Given) -> Given:
        """The next token of the beginning that the request prescribes."""
        return token._replace(text=self._parser.feed(token.text), thinking=self._parser.thinking)

    def round(self, record: Round) -> Round:
        """The next round."""
        emitted = [(self._parser.feed(text), self._parser.thinking) for text in record.said]
        pieces, thinking = [text for text, _ in emitted], tuple(flag for _, flag in emitted)
        said = (*pieces[: record.accepted], *record.pieces[record.accepted :])
        last = record.last_piece if record.last is None else pieces[-1]
        return replace(record, pieces=said, last_piece=last, thinking=thinking if any(thinking) else ())

    def finished(self, record: Finished) -> Finished:
        """The end of the reply."""
        tail = self._parser.feed(record.tail) + self._parser.end()
        return replace(record, tail=tail, thinking=self._parser.thinking and bool(tail))


def unmarked(records: Iterable[Record]) -> Iterator[Record]:
    """The records of any number of replies, without marks."""
    marked: dict[str, Unmarked] = {}
    for record in records:
        if isinstance(record, Admitted) and record.thinking is not None:
            one = marked[record.request_id] = Unmarked(record.thinking)
            yield replace(record, thinking=None, given=tuple(map(one.given, record.given)))
        elif isinstance(record, Round) and record.request_id in marked:
            yield marked[record.request_id].round(record)
        elif isinstance(record, Finished) and record.request_id in marked:
            yield marked[record.request_id].finished(record)
        else:
            yield record


OBSERVED = "observed"
"""Drafter of a round at another server, which does not name its drafter."""
NO_ID = -1
"""Token id that the server does not report."""
_EMPTY = Round("", 0, 0, OBSERVED, 0, (), (), (), (), (), 0, None, None, (), "", 0.0, 0.0, 0.0, 0.0, rows=1)
UNSEEN = {Fate.REJECTED: "✕", Fate.DISCARDED: "·"}
"""Symbols for drafted tokens whose text the server does not report."""


def drawn_text(record: Round, token: Token) -> str:
    """A token's text, or a symbol if the server only counted the token."""
    return UNSEEN.get(token.fate, token.text) if record.observed else token.text


def observed_round(
    request_id: str, number: int, position: int, step: Step | None, pieces: Sequence[str], at: float, seconds: float
) -> Round:
    """A round that emitted these pieces.

    Args:
        request_id: the request.
        number: of the round.
        position: tokens of prompt and reply before it.
        step: drafted and accepted tokens; None if unknown, then `pieces` is one token.
        pieces: text of each emitted token: one more than was accepted, unless the reply ended earlier.
        at: when its last text came.
        seconds: since the text before.
    """
    drafted, accepted = step or Step(0, 0)
    ended = len(pieces) <= accepted
    if ended:  # tokens drafted after the end do not count
        drafted = accepted = len(pieces)
    if step is None:
        fate: Fate | None = Fate.UNKNOWN
    elif ended:
        fate = None
    else:
        fate = Fate.CORRECTION if accepted < drafted else Fate.BONUS if drafted else Fate.PLAIN
    made = replace(_EMPTY, request_id=request_id, number=number, position=position, at=at, rest_s=seconds)
    texts = (*pieces[:accepted], *[""] * (drafted - accepted))
    made = replace(made, gamma=drafted, drafted=(NO_ID,) * drafted, judged=min(accepted + 1, drafted))
    made = replace(made, accepted=accepted, pieces=texts, last_piece="".join(pieces[accepted:]))
    return replace(made, last=None if fate is None else NO_ID, last_fate=fate)


def resolve_rounds(records: Iterable[Record]) -> list[Record]:
    """Records of any number of replies, without marks around thinking.

    If a server reported its steps at the end, their rounds are made from these steps.
    """
    known = list(unmarked(records))
    resolved: dict[str, list[Round]] = {}
    for totals in known:
        if isinstance(totals, Totals) and totals.steps is not None:
            own = [r for r in known if isinstance(r, Round) and r.request_id == totals.request_id]
            if any(r.last_fate is Fate.UNKNOWN for r in own) and (rounds := rounds_of_steps(own, totals.steps)):
                resolved[totals.request_id] = rounds
    pending = dict.fromkeys(resolved, 0)
    """Tokens of each reply since its last inserted round."""
    result: list[Record] = []
    for record in known:
        if not isinstance(record, Round) or record.request_id not in resolved:
            result.append(record)
            continue
        pending[record.request_id] += 1
        rounds = resolved[record.request_id]
        if pending[record.request_id] == len(rounds[0].emitted):
            result.append(rounds.pop(0))
            pending[record.request_id] = 0
    return result


def rounds_of_steps(rounds: Sequence[Round], steps: Sequence[Step]) -> list[Round] | None:
    """The rounds of a reply whose tokens had unknown fates, from the steps that the server reports at its end.

    The first token comes from prefill. Each step then emitted its accepted tokens and one more; the last step may have
    emitted fewer, if the reply ended there.

    Args:
        rounds: one for each token.
        steps: every pass that tested drafts; empty if nothing was drafted.

    Returns:
        None if the steps do not account for every token, as there were passes without a draft at unknown places.
    """
    passes = [Step(0, 0), *steps] if steps else [Step(0, 0)] * len(rounds)
    cut = sum(step.accepted + 1 for step in passes) - len(rounds)
    if not passes or not 0 <= cut <= passes[-1].accepted:
        return None
    made: list[Round] = []
    rest = list(rounds)
    for step in passes:
        part, rest = rest[: step.accepted + 1], rest[step.accepted + 1 :]
        pieces, seconds = [record.text for record in part], sum(record.rest_s for record in part)
        first, at = part[0], part[-1].at
        whole = observed_round(first.request_id, len(made), first.position, step, pieces, at, seconds)
        thinking = tuple(any(record.thinking) for record in part) if any(r.thinking for r in part) else ()
        made.append(replace(whole, thinking=thinking))
    return made
