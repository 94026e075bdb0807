"""Constraints of running rows: which tokens may follow a text, and which text must follow it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specchat.engine.constraint import FIELD, Constraint
from specchat.engine.errors import EngineError, errors_as, first_line
from specchat.engine.request import ANY_TOOL, Request
from specchat.engine.sequence.call_grammar import call_constraint
from specchat.engine.sequence.grammar import check_constraint, check_matcher, matcher_of
from specchat.engine.sequence.reply_formats import find_format
from specchat.engine.sequence.reply_lead import lead_of

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Masks = NDArray[np.int32]
"""[nodes, ⌈V / 32⌉]: bit i of word w says whether token 32·w + i may follow."""


class Constraints:
    """Makes the constraints of rows for one vocabulary.

    Args:
        tokenizer: a fast tokenizer of transformers, or a `PlainTokenizer`.
        vocabulary: V of the target; its tokens beyond those of the tokenizer are never allowed.
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
        constraint = request.constraint
        if request.tools and (constraint is None or request.tool_choice != ANY_TOOL):
            constraint = call_constraint(request, self._of_model, self.is_control)
            form = form and form.without_answer()
        if constraint is None:
            return None
        lead = form and lead_of(form, prompt, self._of_model, request.thinking, self.is_control)
        return self.of(constraint, lead or "", [*prompt, *given], len(prompt))

    def of(self, constraint: Constraint, lead: str, text: Sequence[int], begin: int) -> RowConstraint:
        """The constraint of a row.

        Args:
            constraint: of the request.
            lead: Lark rules of what may precede the answer (`engine.sequence.reply_lead`); empty for nothing.
            text: tokens of the row so far.
            begin: place of the reply's first token in it.

        Raises:
            EngineError: the constraint is not valid, or the given beginning of the reply does not follow it.
        """
        row = RowConstraint(constraint, self._started(constraint, lead).deep_copy(), self._vocabulary, begin)
        row.read(text)
        return row

    def _start(self, constraint: Constraint, lead: str) -> LLMatcher:
        check_constraint(constraint)
        return matcher_of(constraint, lead, self._tokenizer)


class RowConstraint:
    """The constraint of one row. It reads the row's tokens as they arrive.

    Args:
        constraint: of the request.
        matcher: before the first token.
        vocabulary: V.
        begin: place of the reply's first token.
    """

    def __init__(self, constraint: Constraint, matcher: LLMatcher, vocabulary: int, begin: int) -> None:
        self._constraint, self._matcher, self._vocabulary, self._known = constraint, matcher, vocabulary, begin
        self._asked: Future[Masks] | None = None

    def forced(self, text: Sequence[int]) -> list[int]:
        """The tokens that have to follow a row's text, as the model would write the text that has to follow.

        The text that follows is tokenised with the tokens before it; a token that other text after it might change is
        left out. That only one *token* is allowed is rare, since shorter tokens of the same text are allowed too.
        """
        self._settle()
        self.read(text)
        return self._matcher.compute_ff_tokens()

    def allowed(self, text: Sequence[int], drafted: Sequence[int], children: Sequence[Sequence[int]]) -> list[int]:
        """Nodes of a tree that may follow a row's text, in ascending order.

        Args:
            text: of the row.
            drafted: [K], token of each node but node 0, the text's last token.
            children: of each node.
        """
        self._settle()
        self.read(text)
        return sorted(set(self._walk(drafted, children, 0)) - {0})

    def ask(self, text: Sequence[int], drafted: Sequence[int], children: Sequence[Sequence[int]]) -> None:
        """Begin to compute the masks after each node of a tree, as for `allowed`, in another thread."""
        self._settle()
        self._asked = _threads().submit(self._masks, text, drafted, children)

    def masks(self, text: Sequence[int]) -> Masks:
        """Masks after each node of what was asked for, else after the text; forbidden nodes forbid nothing.

        Raises:
            EngineError: the constraint takes more work than is allowed.
        """
        asked, self._asked = self._asked, None
        return asked.result() if asked else self._masks(text, (), ((),))

    def _masks(self, text: Sequence[int], drafted: Sequence[int], children: Sequence[Sequence[int]]) -> Masks:
        self.read(text)
        masks = np.full((len(children), -(-self._vocabulary // 32)), -1, dtype=np.int32)
        for node in self._walk(drafted, children, 0):
            found = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)
            masks[node] = found[: masks.shape[1]]
            check_matcher(self._constraint, self._matcher)
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
        new, self._known = text[self._known :], len(text)
        if self._matcher.try_consume_tokens(list(new)) < len(new):
            check_matcher(self._constraint, self._matcher)
            raise EngineError(f"the beginning of the reply does not follow the {self._constraint.kind}", FIELD)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(2, "masks")
