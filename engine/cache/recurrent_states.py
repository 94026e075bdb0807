"""States of recurrent layers by the length of the text they have read, so that a rollback is a length here too.

A recurrent state cannot be cropped: the state after n tokens does not contain the one after n - 1. A pass over few
tokens therefore stores the state after each of them. The round leaves `SequenceState.cached` at the last accepted
token, and the next pass starts from the state of that length; states of rejected tokens are dropped. Nothing is
computed again. States at the ends of prompts and replies stay as snapshots, from which another prompt with the
same beginning continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specchat.engine.cache.block_pool import StateStore
from specchat.engine.cache.kv_cache import CacheView, StaticView
from specchat.engine.request import MAX_GAMMA

_ROLLBACK = MAX_GAMMA + 3
"""Tokens that can be taken back: a draft model feeds a whole draft, and its last two tokens again."""
RECORDED = MAX_GAMMA + 1
"""Longest pass that stores a state per token; longer ones are prompts and store the last."""


class StateShape(NamedTuple):
    """Shape and dtype of one state of one row."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Memory of it."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


Key = tuple[int, str]
"""Layer, and which of its states: "conv", the last inputs of its convolution [channels, kernel size]; "recurrent"."""
State = Mapping[Key, Tensor]
"""States of one row after some length."""


class RecurrentStates(StateStore):
    """States of all slots of transformers' networks.

    Args:
        shapes: of every state of a row.
        slots: sequences that fit at once.
        device: of the states.
    """

    def __init__(self, shapes: Mapping[Key, StateShape], slots: int, device: torch.device) -> None:
        super().__init__(slots)
        self.shapes, self.device = dict(shapes), device
        self.bytes = sum(shape.bytes for shape in self.shapes.values())
        self._recent: list[dict[int, State]] = [{} for _ in range(slots)]
        """States after each token of the latest passes, by length, for each slot."""

    def at(self, slot: int, length: int) -> State | None:
        """The state after `length` tokens; None if it is not known."""
        return self._recent[slot].get(length) or self._snapshots[slot].get(length)

    def _latest(self, slot: int, length: int) -> int:
        return max((n for n in self._recent[slot] if n <= length), default=0)

    def give(self, slot: int, states: Mapping[int, State]) -> None:
        """Let a slot know these states and nothing else."""
        super().give(slot, states)
        self._recent[slot] = {}

    def begin_round(self, slot: int, length: int) -> None:
        """A round has begun at `length`: the slot continues from there, or another prompt from a snapshot."""
        self._reading[slot] = None
        self._recent[slot] = {n: state for n, state in self._recent[slot].items() if n >= length}

    def snapshot(self, slot: int, start: int, end: int) -> None:
        """Keep the states at both ends of a chunk of a prompt; the one at `end` until the next chunk has been read."""
        reading = self._reading[slot]
        if start == reading:
            self._snapshots[slot].pop(start)
        self._keep(slot, [n for n in (start, end) if n != reading])
        self._reading[slot] = end

    def prefill(
        self,
        read: Callable[[Tensor, Sequence[int], Sequence[int]], Tensor | None],
        tokens: Tensor,
        slots: Sequence[int],
        starts: Sequence[int],
        lengths: Sequence[int],
    ) -> Tensor | None:
        """Read chunks of prompts, with snapshots of the states at their ends; returns what `read` does [B, T, …].

        Rows of one length are read together, as padding would change a recurrent state.

        Args:
            read: a pass over tokens [b, t] of slots from these columns on, which returns their tapped hidden states.
            tokens: [B, T], padded.
            slots: [B].
            starts: [B].
            lengths: [B].
        """
        tapped: dict[int, Tensor] = {}
        for length in sorted(set(lengths)):
            rows = [row for row, own in enumerate(lengths) if own == length]
            mine, froms = [slots[row] for row in rows], [starts[row] for row in rows]
            found = read(tokens[rows, :length], mine, froms)
            for i, (row, slot, start) in enumerate(zip(rows, mine, froms, strict=True)):
                self.snapshot(slot, start, start + length)
                if found is not None:
                    tapped[row] = found[i]
        if not tapped:
            return None
        return torch.nn.utils.rnn.pad_sequence([tapped[row] for row in range(len(slots))], batch_first=True)

    @contextmanager
    def reading(
        self, slots: Sequence[int], starts: Sequence[int], tokens: int, attention: CacheView | StaticView
    ) -> Iterator[StatePass]:
        """A pass of rows in these slots over `tokens` tokens each, from these lengths on, whose states are stored.

        Args:
            slots: [B].
            starts: [B].
            tokens: T.
            attention: keys and values that the pass reads and writes.
        """
        befores: list[State | None] = []
        for slot, start in zip(slots, starts, strict=True):
            before = self.at(slot, start)
            assert before is not None or not start, f"the state of slot {slot} after {start} tokens is not known"
            befores.append(before)
        made = StatePass(self, befores, tokens, attention)
        with made.recording():
            yield made
        for row, (slot, start) in enumerate(zip(slots, starts, strict=True)):
            self._drop_snapshots(slot, start)
            recent = {n: state for n, state in self._recent[slot].items() if start - _ROLLBACK <= n <= start}
            self._recent[slot] = recent | {start + n: state for n, state in made.states_of(row)}


@dataclass(frozen=True, slots=True)
class _Layers:
    """States by layer, as transformers before 5.23 asks for them: `cache.layers[3].conv_states[0]`."""

    states: StatePass
    layer: int = 0
    record_past = True

    def __getitem__(self, layer: int) -> _Layers:
        return _Layers(self.states, layer)

    @property
    def conv_states(self) -> tuple[Tensor]:
        """Result of `StatePass.get_conv_state`."""
        return (self.states.get_conv_state(self.layer),)

    @property
    def recurrent_states(self) -> tuple[Tensor]:
        """Result of `StatePass.get_recurrent_state`."""
        return (self.states.get_recurrent_state(self.layer),)


class StatePass:
    """Cache of one pass of a network with recurrent layers, passed to transformers as `past_key_values`.

    Args:
        states: the states that the pass starts from; it adds its own.
        befores: [B], what each row starts from; None where it has read nothing.
        tokens: T, per row.
        attention: keys and values.
    """

    is_compileable = False

    def __init__(
        self, states: RecurrentStates, befores: Sequence[State | None], tokens: int, attention: CacheView | StaticView
    ) -> None:
        self.update, self.get_seq_length = attention.update, attention.get_seq_length
        self._states, self._befores, self._tokens = states, befores, tokens
        self.records = tokens <= RECORDED
        """Whether states are stored after each token."""
        self._handed: dict[Key, Tensor] = {}
        self._after: dict[Key, Callable[[int, int], Tensor]] = {}
        """Functions that give a state, from the row and the number of tokens of the pass."""
        self.steps: list[Tensor] = []
        """States of the layer that runs, after each token."""
        self.before: Tensor | None = None
        """What `get_recurrent_state` gave last."""

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Let `stepwise` operators called in here store the state after each token, unless the pass is long."""
        token = _running.set(self)
        try:
            yield
        finally:
            _running.reset(token)

    def is_recording_past(self, layer_idx: int) -> bool:  # noqa: ARG002
        """Whether convolutions must be given all their inputs, also for one token: they would overwrite their state."""
        return True

    def has_previous_state(self, *_: object, **__: object) -> bool:
        """True, for transformers before 5.23: a row that has read nothing starts from zeros."""
        return True

    @property
    def layers(self) -> _Layers:
        """States by layer."""
        return _Layers(self)

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:  # noqa: ARG002
        """Last inputs of a convolution [B, channels, kernel size]."""
        return self._before((layer_idx, "conv"))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:  # noqa: ARG002
        """State [B, …] of a layer, which the layer may overwrite."""
        self.before = self._before((layer_idx, "recurrent"))
        return self.before

    def update_conv_state(self, inputs: Tensor, layer_idx: int, **_: object) -> Tensor:
        """The inputs of this pass [B, channels, T] appended to the earlier ones [B, channels, kernel size + T]."""
        key = layer_idx, "conv"
        before = self._before(key)
        size, inputs = before.shape[-1], torch.cat([before, inputs], dim=-1)
        self._after[key] = lambda row, count: inputs[row, :, count : count + size]
        return inputs

    def update_recurrent_state(self, state: Tensor, layer_idx: int, **_: object) -> Tensor:
        """The state [B, …] that the pass leaves; `stepwise` operators have stored the states after earlier tokens."""
        key = layer_idx, "recurrent"
        states, dtype = [*self.steps] or [state], self._states.shapes[key].dtype
        self.steps.clear()
        self._after[key] = lambda row, count: states[count - 1 if len(states) > 1 else 0][row].to(dtype)
        return state

    def states_of(self, row: int) -> Iterator[tuple[int, State]]:
        """A row's states after numbers of tokens of this pass."""
        # A layer that read one token has overwritten what it was handed.
        overwritten = {key: states[row] for key, states in self._handed.items() if key not in self._after}
        for count in range(1 if self.records else self._tokens, self._tokens + 1):
            yield count, overwritten | {key: after(row, count) for key, after in self._after.items()}

    def _before(self, key: Key) -> Tensor:
        if key not in self._handed:
            shape, dtype = self._states.shapes[key]
            blank = torch.zeros(shape, dtype=dtype, device=self._states.device)
            self._handed[key] = torch.stack([blank if state is None else state[key] for state in self._befores])
        return self._handed[key]


_running: ContextVar[StatePass | None] = ContextVar("running", default=None)


def stepwise(
    whole: Callable[..., tuple[Tensor, Tensor]],
    step: Callable[..., tuple[Tensor, Tensor]],
    dimension: int = 1,
    *,
    starts_anew: bool = False,
) -> Callable[..., tuple[Tensor, Tensor]]:
    """An operator over T tokens that runs token by token where states are recorded.

    Args:
        whole: the operator over all tokens at once.
        step: the operator over token t; its arguments are t, the state before (None at first), and what `whole` gets.
        dimension: of the tokens in its first argument and its result.
        starts_anew: whether `whole` ignores the state before the pass, so that `step` runs in every pass and gets it.
    """

    def run(*args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
        running = _running.get()
        if running is None or not (running.records or starts_anew):
            return whole(*args, **kwargs)
        first, state = args[0], running.before if starts_anew else None
        assert isinstance(first, Tensor)
        outputs: list[Tensor] = []
        for t in range(first.shape[dimension]):
            output, state = step(t, state, *args, **kwargs)
            outputs.append(output)
            if running.records:
                running.steps.append(state)
        assert state is not None
        return torch.cat(outputs, dimension), state

    run.whole = whole  # type: ignore[attr-defined]
    return run
