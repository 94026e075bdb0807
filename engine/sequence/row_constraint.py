"""Constraints of running rows: which tokens may follow a text, and which text must follow it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from enum import IntEnum
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specchat.engine.errors import EngineError, errors_as, first_line
from specchat.engine.request import ANY_TOOL, FIELD, Constraint, Request
from specchat.engine.sequence.call_grammar import call_constraint, may_end_thinking
from specchat.engine.sequence.grammar import check_constraint, check_matcher, matcher_of
from specchat.engine.sequence.reply_formats import LAST, ReplyFormat, find_format
from specchat.engine.sequence.reply_parser import Channels, Tags

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


Masks = NDArray[np.int32]
"""[nodes, ⌈V / 32⌉]: bit i of word w says whether token 32·w + i may follow."""


class Constraints:
    """Makes the constraints of rows for one vocabulary.

    Args:
        tokenizer: a fast tokenizer of transformers, or a `PlainTokenizer`.
        vocabulary: V of the target; tokens beyond the tokenizer's are never allowed.
        ends: tokens that end a reply.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, ends: Collection[int]) -> None:
        self._of_model, self._backend = tokenizer, tokenizer.backend_tokenizer
        self._format, self._vocabulary, self._ends = find_format(tokenizer), vocabulary, sorted(ends)
        self._started = lru_cache(maxsize=16)(self._start)
        """Matchers before the first token, for copies."""

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        """Built with the first constraint, which takes half a second for 50,000 tokens."""
        from llguidance import LLTokenizer

        size = max(self._vocabulary, self._backend.get_vocab_size(with_added_tokens=True))
        with errors_as(lambda error: f"replies of this model cannot be constrained ({first_line(error)})"):
            return LLTokenizer(self._backend.to_str(), n_vocab=size, eos_token=self._ends)

    def is_control(self, token: int) -> bool:
        """Whether llguidance takes a token for one that no text matches."""
        return self._tokenizer.is_special_token(token)

    def of_request(self, request: Request, prompt: Sequence[int], given: Sequence[int] = ()) -> RowConstraint | None:
        """The constraint of a request's reply, or of its calls of tools; None for a free reply.

        Args:
            request: with a prompt.
            prompt: its tokens.
            given: tokens that the reply begins with.

        Raises:
            EngineError: as for `of`, or the model cannot be made to call the chosen tool.
        """
        form = None if request.raw or request.prompt is not None else self._format
        constraint, unclosed = request.constraint, False
        if request.tools and (constraint is None or request.tool_choice != ANY_TOOL):
            constraint = call_constraint(request, self._of_model, self.is_control)
            form = form and form.without_answer()
            unclosed = constraint is not None and may_end_thinking(constraint, self._of_model)
        if constraint is None:
            return None
        lead = form and lead_of(form, prompt, self._of_model, request.thinking, self.is_control, unclosed=unclosed)
        return self.of(constraint, lead or "", [*prompt, *given], len(prompt))

    def of(self, constraint: Constraint, lead: str, text: Sequence[int], begin: int) -> RowConstraint:
        """The constraint of a row.

        Args:
            constraint: of the request.
            lead: Lark rules of what may precede the answer (`engine.sequence.row_constraint`); empty for nothing.
            text: tokens of the row so far.
            begin: place of the reply's first token in it.

        Raises:
            EngineError: the constraint is not valid, or the given beginning of the reply does not follow it.
        """
        matcher = self._started(constraint, lead).deep_copy()
        row = RowConstraint(constraint, matcher, self._tokenizer, self._vocabulary, begin, self._started.cache_clear)
        row.read(text)
        return row

    def _start(self, constraint: Constraint, lead: str) -> LLMatcher:
        check_constraint(constraint)
        return matcher_of(constraint, lead, self._tokenizer)


class ForcedKind(IntEnum):
    """How likely a forced token is to be what the model writes."""

    CERTAIN = 0
    """The text has to follow, and no text after it changes the token."""
    OPEN = 1
    """The text has to follow, but a token that reaches beyond it may come instead."""
    EITHER = 2
    """It begins one of two texts that may follow."""
    ONE_OF_FEW = 3
    """It begins one of three texts or more."""


class Forced(NamedTuple):
    """A token of a tree of texts, one of which has to follow."""

    parent: int
    """Number of the token before it, from 1 on; 0 for the first."""
    token: int
    kind: ForcedKind


_FEW, _FEW_TOKENS = 4, 24
"""Most texts that are offered next to each other, and most tokens that may begin them."""


class RowConstraint:
    """The constraint of one row. It reads the row's tokens as they arrive.

    Args:
        constraint: of the request.
        matcher: before the first token.
        tokenizer: of its tokens.
        vocabulary: V.
        begin: place of the reply's first token.
        on_failure: called if it takes too much work. Copies of a matcher share what they have computed, so that of
            later replies would fail at once.
    """

    def __init__(
        self,
        constraint: Constraint,
        matcher: LLMatcher,
        tokenizer: LLTokenizer,
        vocabulary: int,
        begin: int,
        on_failure: Callable[[], object],
    ) -> None:
        self._constraint, self._matcher, self._tokenizer = constraint, matcher, tokenizer
        self._on_failure = on_failure
        self._vocabulary, self._known = vocabulary, begin
        self._asked: Future[Masks] | None = None

    def follow(
        self, text: Sequence[int], drafted: Sequence[int] = (), children: Sequence[Sequence[int]] = ((),)
    ) -> dict[int, list[Forced]]:
        """What has to follow each node of a tree; nodes that may not follow a row's text are left out.

        Args:
            text: of the row.
            drafted: [K], token of each node but node 0, the text's last token.
            children: of each node.
        """
        self._settle()
        self._advance(text)
        parents = {child: node for node, each in enumerate(children) for child in each}
        found = dict[int, list[Forced]]()
        for node in self._walk(drafted, children, 0):
            known = found[parents[node]] if node else []
            if known and known[0].kind is ForcedKind.CERTAIN and known[0].token == drafted[node - 1]:
                found[node] = [Forced(parent - 1, token, kind) for parent, token, kind in known[1:]]
            else:
                found[node] = self._forced(first=not node)
        return found

    def _forced(self, *, first: bool) -> list[Forced]:
        """What has to follow where the matcher is, as the model would write it.

        That only one *token* is allowed is rare, since shorter tokens of the same text are allowed too.

        Args:
            first: whether to find a choice of texts where none has to follow: elsewhere that is rarely worth the time.
        """
        certain, text = self._matcher.compute_ff_tokens(), self._matcher.compute_ff_bytes()
        found = [Forced(i, token, ForcedKind.CERTAIN) for i, token in enumerate(certain)]
        if not text and not first:
            return found
        tokenized = self._tokenizer.tokenize_bytes
        rest = tokenized(text[len(self._tokenizer.decode_bytes(certain)) :])
        choice = [] if self._is_free([*certain, *rest]) else [*map(tokenized, self._choice(certain))]
        kind = ForcedKind.ONE_OF_FEW if len(choice) > 2 else ForcedKind.EITHER if choice else ForcedKind.OPEN
        for tokens in choice or [rest]:
            for i, token in enumerate(tokens):
                last = len(found)
                found.append(Forced(last if i else len(certain), token, ForcedKind.CERTAIN if i else kind))
        return found

    def _is_free(self, after: Sequence[int]) -> bool:
        """Whether more than a few texts may follow these tokens, as inside a string and before a number: that takes
        less time to find than a mask."""
        read = self._matcher.try_consume_tokens(list(after))
        free = any(all(map(self._matcher.validate_tokens, each)) for each in _beginnings(self._tokenizer))
        self._matcher.rollback(read)
        return free

    def _choice(self, before: Sequence[int]) -> list[bytes]:
        """The few texts, one of which has to follow the matcher's text and `before`; none if there are many or one."""
        read = self._matcher.try_consume_tokens(list(before))
        known = {self._tokenizer.decode_bytes([token]): token for token in self._few_allowed()}
        longest = [each for each, after in pairwise([*sorted(known), b""]) if not after.startswith(each)]
        texts = [each + self._after(known[each]) for each in longest] if 1 < len(longest) <= _FEW else []
        self._matcher.rollback(read)
        return texts

    def _few_allowed(self) -> Sequence[int]:
        """The tokens that may follow; none if they are many, or one of them is no text."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint32)
        if np.count_nonzero(mask) > _FEW_TOKENS:
            return ()
        places = np.flatnonzero(mask)
        found = zip(places.tolist(), mask[places].tolist(), strict=True)
        allowed = [32 * place + bit for place, word in found for bit in range(32) if word >> bit & 1]
        special = any(map(self._tokenizer.is_special_token, allowed))
        return () if special or len(allowed) > _FEW_TOKENS else allowed

    def _after(self, token: int) -> bytes:
        """The text that has to follow a token."""
        if not self._matcher.try_consume_tokens([token]):
            return b""
        text = self._matcher.compute_ff_bytes()
        self._matcher.rollback(1)
        return text

    def ask(self, text: Sequence[int], drafted: Sequence[int], children: Sequence[Sequence[int]]) -> None:
        """Begin to compute the masks after each node of a tree, as for `follow`, in another thread."""
        self._settle()
        self._asked = _threads().submit(self._masks, text, drafted, children)

    def masks(self, text: Sequence[int]) -> Masks:
        """Masks after each node of what was asked for, else after the text; forbidden nodes forbid nothing.

        Nothing is forbidden from where the constraint takes more work than is allowed, either; `check` tells of that.
        """
        asked, self._asked = self._asked, None
        return asked.result() if asked else self._masks(text, (), ((),))

    def _masks(self, text: Sequence[int], drafted: Sequence[int], children: Sequence[Sequence[int]]) -> Masks:
        masks = np.full((len(children), -(-self._vocabulary // 32)), -1, dtype=np.int32)
        for node in self._walk(drafted, children, 0) if self._advance(text) else ():
            found = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)
            if self._matcher.is_error():
                break
            masks[node] = found[: masks.shape[1]]
        return masks

    def _walk(self, drafted: Sequence[int], children: Sequence[Sequence[int]], node: int) -> Iterator[int]:
        """All allowed nodes from `node` on, each yielded while the matcher is after it."""
        yield node
        for child in children[node]:
            if self._matcher.try_consume_tokens([drafted[child - 1]]):
                yield from self._walk(drafted, children, child)
                self._matcher.rollback(1)

    def _settle(self) -> None:
        """Wait for masks that were asked for and not taken, as the round failed."""
        asked, self._asked = self._asked, None
        if asked:
            asked.exception()

    def read(self, text: Sequence[int]) -> None:
        """Read the tokens since the last call.

        Raises:
            EngineError: the reply does not follow the constraint: its beginning was given.
        """
        if not self._advance(text):
            self.check()
            raise EngineError(f"the beginning of the reply does not follow the {self._constraint.kind}", FIELD)

    def check(self) -> None:
        """Check that the constraint could be followed so far.

        Raises:
            EngineError: it takes more work than is allowed.
        """
        if self._matcher.is_error():
            self._on_failure()
        check_matcher(self._constraint, self._matcher)

    def _advance(self, text: Sequence[int]) -> bool:
        """Read the tokens since the last call; returns whether they follow the constraint."""
        new, self._known = text[self._known :], len(text)
        return self._matcher.try_consume_tokens(list(new)) == len(new)


@lru_cache(maxsize=4)
def _beginnings(tokenizer: LLTokenizer) -> list[list[list[int]]]:
    """Letters and digits as tokens, more than `_FEW` of each."""
    return [[tokenizer.tokenize_bytes(each.encode())[:1] for each in kind] for kind in ("bkqvz", "12345")]


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(2, "masks")


_UNTHINKING = (False, "none", "no_think", "disabled")
"""Values of `Request.thinking` that switch it off."""
Literal = Callable[[str], str]
"""A mark in Lark."""


class _Parts(NamedTuple):
    """Parts of a lead, in Lark but for `closing`."""

    opening: str
    closing: Sequence[str]
    """The marks that may end the thinking."""
    rest: str
    """What follows them."""
    answer: str


def lead_of(
    form: ReplyFormat,
    prompt: Sequence[int],
    tokenizer: Any,
    thinking: bool | str | None,
    is_control: Callable[[int], bool],
    *,
    unclosed: bool = False,
) -> str:
    """Lark rules for all that precedes the rule `@answer`; empty for nothing.

    Args:
        form: of the model's replies.
        prompt: that is answered; it may have begun the thinking, or ended it.
        tokenizer: a `PlainTokenizer`.
        thinking: of the request.
        is_control: whether llguidance takes a token for one that no text matches.
        unclosed: whether the answer may follow thinking without a closing mark, as it begins with a control token.
    """
    backend, marks = tokenizer.backend_tokenizer, form.marks

    def literal(text: str) -> str:
        token = backend.token_to_id(text)
        return json.dumps(text) if token is None or not is_control(token) else f"<[{token}]>"

    if isinstance(marks, Tags):
        parts = _of_tags(marks, literal)
    else:
        known = form.whole and all(backend.token_to_id(mark) is not None for mark in _marks_in(marks.lead[0]))
        if not known or not marks.lead[0]:
            return ""
        parts = _of_channels(marks, literal)
    closing = [*map(literal, parts.closing)]
    tokens = [each for each in closing if not each.startswith('"')]
    end = str(backend.decode(list(prompt[-LAST:]), skip_special_tokens=False)).rstrip()
    thought = f"thought {parts.rest}"
    if unclosed and isinstance(marks, Tags):
        thought = f"({thought} | /(?s:.*)/)"
    if form.parser(prompt, tokenizer).thinking:  # some models write the opening mark once more
        before = f"({parts.opening} SPACE)? {thought}"
    elif end.endswith(tuple(parts.closing)) or thinking in _UNTHINKING:
        before = ""
    else:  # or the closing mark alone
        before = f"(SPACE ({parts.opening} {thought} | ({'|'.join(closing)}) {parts.rest}))?"
    if not before and not parts.answer:
        return ""
    if tokens:
        rule = f"thought: /(?s:.*)/ ({'|'.join(tokens)})"
    else:
        words = "|".join(map(re.escape, parts.closing)).replace("/", "\\/")
        rule = f"thought[lazy]: /(?s:.*)({words})/"
    return f"start: {before} {parts.answer} @answer\n{rule}\nSPACE: /[ \\n]{{0,4}}/"


def _of_tags(marks: Tags, literal: Literal) -> _Parts:
    opening, answer = ("|".join(map(literal, each)) for each in (marks.opening, marks.answer))
    return _Parts(f"({opening})", marks.closing, "SPACE", f"(({answer}) SPACE)?" if answer else "")


def _of_channels(marks: Channels, literal: Literal) -> _Parts:
    opening, closing, answer = marks.lead
    first, _, rest = closing.partition(" ")
    opening, rest, answer = (
        " ".join(literal(word) if word in marks.meaning else word for word in part.split())
        for part in (opening, rest, answer)
    )
    return _Parts(opening, (first,), rest, answer)


def _marks_in(part: str) -> list[str]:
    return [word for word in part.split() if word.startswith("<")]
