"""The rounds of a reply with a number for each token, and the text that they make up."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Generic, TypeVar

from specchat import engine
from specchat.app.chat.parts import joined, parts_of
from specchat.app.chat.thinking import Thought
from specchat.engine import MessagePart, PartKind, text_of

T = TypeVar("T")


class Recorded(Generic[T]):
    """An attribute that follows from the rounds of a reply; the first access reads the rounds of a stored reply."""

    def __set_name__(self, owner: type[RecordedRounds], name: str) -> None:
        self._name = name

    def __get__(self, reply: RecordedRounds, owner: type[RecordedRounds]) -> T:
        reply.load()
        value: T = reply.__dict__[self._name]
        return value

    def __set__(self, reply: RecordedRounds, value: T) -> None:
        reply.__dict__[self._name] = value


class RecordedRounds:
    """The rounds of a reply, which are read when they are needed first.

    Tokens are numbered from 0 through all rounds: in a round the drafted ones, then the last one.
    """

    rounds = Recorded[list[engine.Round]]()
    """The rounds so far."""
    starts = Recorded[list[int]]()
    """Number of the first token of each round."""
    tokens = Recorded[int]()
    """Number of drafted or emitted tokens."""
    given = Recorded[int]()
    """How many of the rounds it started with: taken over from another reply, or chosen. No figure counts them."""
    thought = Recorded[Thought]()
    """The thinking at its start."""
    carried = 0
    """Tokens of the rounds that were taken over."""
    _said: list[MessagePart]
    """The parts, of which several of the same kind may follow each other."""

    def load(self) -> None:
        """Read the rounds, unless that is done."""
        raise NotImplementedError

    @property
    def own_rounds(self) -> list[engine.Round]:
        """The rounds of its request, without the ones that it started with."""
        return self.rounds[self.given :]

    @property
    def emitted(self) -> tuple[int, ...]:
        """Token ids of the reply so far; empty if its rounds are unknown."""
        return tuple(token for record in self.rounds for token in record.emitted)

    @property
    def parts(self) -> list[MessagePart]:
        """Its text and its thinking so far, in order."""
        self._said = list(joined(self._said))
        return self._said

    @property
    def text(self) -> str:
        """The answer so far."""
        return text_of(self.parts, PartKind.TEXT)

    @property
    def thinking(self) -> str:
        """The thinking so far."""
        return text_of(self.parts, PartKind.THINKING).strip()

    @property
    def calls(self) -> list[MessagePart]:
        """The calls of tools so far."""
        return [part for part in self.parts if part.kind is PartKind.CALL]

    @property
    def has_text(self) -> bool:
        """Whether there is any text, be it thinking."""
        return any(part.text for part in self._said)

    def round_of(self, token: int) -> int:
        """The index of the round with this token."""
        return bisect_right(self.starts, token) - 1

    def token(self, number: int) -> tuple[engine.Round, engine.Token]:
        """A token by its number, and its round.

        Raises:
            IndexError: there is no such token.
        """
        if not 0 <= number < self.tokens:
            raise IndexError(number)
        index = self.round_of(number)
        record = self.rounds[index]
        return record, list(record.tokens())[number - self.starts[index]]

    def carry(self, rounds: Iterable[engine.Round]) -> None:
        """Start with the rounds of another reply; its own request continues them."""
        for record in rounds:
            self._append(record)
        self.given, self.carried = len(self.rounds), len(self.emitted)

    def _append(self, record: engine.Round, *, own: bool = False) -> None:
        first = self.tokens
        self.thought.add(record, first, own=own)
        self.rounds.append(record)
        self.starts.append(first)
        self.tokens = first + len(record.drafted) + (record.last is not None)
        self._said += parts_of(record)

    def _forget_rounds(self) -> None:
        self.rounds, self.starts, self.tokens, self.thought, self._said, self.given = [], [], 0, Thought(), [], 0
