"""Other replies and versions of earlier prompts, requests about one token of a reply, and forks at one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from specchat import engine
from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.chat.questions import Examination, Look, Saying
from specchat.app.chat.reply import Reply
from specchat.app.chat.request_manager import RequestManager
from specchat.app.chat.titles import TITLE_BEGIN, TITLE_ENDS, TITLE_PROMPT, written_title
from specchat.app.settings.settings import Settings
from specchat.engine import Round, Sampling

TITLE_TOKENS = 24


def regenerate(requests: RequestManager, conversation: Conversation, prompt: Prompt, settings: Settings) -> bool:
    """Request one more reply to a prompt of the path with these settings; return whether there is an engine."""
    if settings.seed is not None:  # the same seed would repeat the reply
        settings = replace(settings, seed=settings.seed + len(prompt.replies))
    request = replace(conversation.request(settings, prompt), not_drafted_from=prompt.reply_rows)
    return requests.request_another(conversation, prompt, request, ())


def continue_reply(
    requests: RequestManager,
    conversation: Conversation,
    prompt: Prompt,
    rounds: Sequence[Round],
    chosen: Sequence[int] = (),
    text: str = "",
    *,
    stop_repeats: bool = True,
) -> bool:
    """Request one more reply that starts with part of another one; return whether there is an engine.

    Args:
        conversation: The conversation.
        prompt: A prompt of its path.
        rounds: Rounds of another reply that the new one starts with, from the engine's cache if possible.
        chosen: Token ids after these rounds.
        text: Text after these tokens.
        stop_repeats: Whether it ends when it repeats itself.
    """
    if requests.effective is None:
        return False
    if any(record.observed for record in rounds):  # tokens have no ids: continue from the text
        text, rounds = "".join(record.answer for record in rounds) + text, rounds[:0]
    emitted = [token for record in rounds for token in record.emitted]
    request = conversation.request(requests.effective, prompt)
    request = replace(request, reply_ids=(*emitted, *chosen), reply_text=text, stop_repeats=stop_repeats)
    return requests.request_another(conversation, prompt, request, rounds)


def pick(requests: RequestManager, conversation: Conversation, reply: Reply) -> None:
    """Continue with one of several replies, and end the others."""
    requests.choose(conversation, reply)
    requests.running.cancel(other for other in reply.siblings if isinstance(other, Reply) and other is not reply)


def look(
    requests: RequestManager,
    conversation: Conversation,
    prompt: Prompt,
    rounds: Sequence[Round],
    detail: int,
    then: Callable[[Round | None], None],
) -> bool:
    """Request the target's likeliest tokens after these rounds of a reply; return whether there is an engine.

    `then` gets a round with `Round.detail`, or None without an answer.
    """
    source = requests.source
    if source is None or requests.effective is None or any(record.observed for record in rounds):
        return False
    request = conversation.request(requests.effective, prompt)
    request = replace(request, drafter="none", gamma=0, max_tokens=1, detail=detail)
    context = [token for record in rounds for token in record.emitted]
    return requests.questions.ask(source, Look(then), request, context) is None


def entitle(requests: RequestManager, conversation: Conversation, then: Callable[[str], None]) -> None:
    """Request a title for a conversation from its first answer, whose tokens are in the cache.

    `then` gets the title, or an empty text if it is unusable; it is not called if the request failed or was cancelled.
    """
    source, settings = requests.source, requests.effective
    answered = (n for n, reply in enumerate(conversation.replies, 1) if not reply.calls)
    if source is None or settings is None or (count := next(answered, None)) is None:
        return
    asked, answer = conversation.prompts[0].text, conversation.replies[count - 1].text

    def take(text: str, complete: bool) -> None:
        then(written_title(text, asked, answer, complete=complete))

    messages = conversation.messages_with(TITLE_PROMPT, prompts=count)
    request = settings.with_thinking(False).request(uuid4().hex, messages, TITLE_ENDS)
    request = replace(request, max_tokens=TITLE_TOKENS, sampling=Sampling(), drafter="none", gamma=0)
    requests.questions.ask(source, Saying(take), replace(request, reply_text=TITLE_BEGIN), ())


def examine(requests: RequestManager, conversation: Conversation, reply: Reply, token: int, detail: int) -> None:
    """Compute the top-k lists of this size for a token of an ended reply, into `Reply.computed`."""
    prompt = conversation.prompt_of(reply)
    known = token in reply.computed and reply.computed[token].detail is not None
    if prompt is None or requests.effective is None or known or reply.metrics.observed:
        return
    if requests.questions.asked(reply, token):
        return
    examination = Examination(reply, token, detail)
    if reply.model and reply.model != requests.model:
        examination.fail(f"the reply came from {reply.model}, which is not loaded")
    else:
        settings = requests.effective.with_thinking(conversation.thinking)
        request = examination.request(settings, uuid4().hex, conversation.messages_of(prompt, reply))
        error = requests.questions.ask(requests.session.source, examination, request, examination.context)
        if error is not None:
            examination.fail(error)


_PER_TOKEN = ("drafted", "p", "q", "u", "beta", "pieces", "detail", "refused", "thinking")
"""Fields of a round with an entry per drafted token, or per emitted one."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Tokens that a reply can continue with at a fork."""

    ids: tuple[int, ...]
    text: str
    about: str
    """Their probabilities or origin, in words."""


@dataclass(frozen=True, slots=True)
class TokenFork:
    """A place in a reply where it can continue with other tokens."""

    rounds: tuple[engine.Round, ...]
    """The reply up to the place."""
    taken: int | None
    """The token that follows there in the reply; None at a discarded token."""
    taken_text: str
    drafted: tuple[Alternative, ...]
    """Drafted tokens that did not become part of the reply."""
    likeliest: tuple[engine.Candidate, ...]
    """The target's likeliest tokens; empty where they were not recorded."""

    def alternatives(self, likeliest: Sequence[engine.Candidate]) -> list[Alternative]:
        """The drafted tokens and then the likeliest ones, each once and without the token in the reply."""
        known = {alternative.ids for alternative in self.drafted} | {(self.taken,)}
        others = [Alternative((c.id,), c.text, f"p {c.probability:.3f}") for c in likeliest if (c.id,) not in known]
        return [*self.drafted, *others]


def fork_at(reply: Reply, number: int) -> TokenFork:
    """The fork at a token of a reply.

    Raises:
        IndexError: there is no such token.
    """
    record, token = reply.token(number)
    rounds = tuple(rounds_before(reply, number))
    if record.observed:  # tokens have no ids
        return TokenFork(rounds, None, token.text, (), ())
    if token.fate is engine.Fate.DISCARDED:
        path = slice(record.accepted, token.place + 1)
        draft = Alternative(record.drafted[path], "".join(record.pieces[path]), "the draft up to here")
        return TokenFork(rounds, None, "", (draft,), ())
    place = min(token.place, record.accepted)
    is_last = place == record.accepted
    taken = record.last if is_last else record.drafted[place]
    text = record.last_piece if is_last else record.pieces[place]
    drafted = []
    if is_last and place < record.tested:
        drafted.append(_rejected(record.drafted[place], record.pieces[place], record.p[place], record.q[place]))
    if place < len(record.refused):
        drafted += [_rejected(other.id, other.text, other.p, other.q) for other in record.refused[place]]
    likeliest = record.detail[place].target if place < len(record.detail) else ()
    return TokenFork(rounds, taken, text, tuple(drafted), likeliest)


def rounds_before(reply: Reply, token: int) -> list[engine.Round]:
    """The rounds before a token of a reply; the last of them is cut before it.

    A rejected or discarded token and a correction come after the accepted tokens of their round.
    """
    if token >= reply.tokens:
        return list(reply.rounds)
    index = reply.round_of(token)
    record = reply.rounds[index]
    kept = min(token - reply.starts[index], record.accepted)
    if not kept:
        return reply.rounds[:index]
    parts = {name: getattr(record, name)[:kept] for name in _PER_TOKEN}
    return [*reply.rounds[:index], replace(record, accepted=kept, last=None, last_fate=None, last_piece="", **parts)]


def _rejected(token: int, text: str, p: float, q: float) -> Alternative:
    return Alternative((token,), text, f"rejected · p {p:.3f} · q {q:.3f}")
