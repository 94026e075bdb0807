"""Admission: from a request that waits to a row in a slot of the cache."""

from __future__ import annotations

from collections.abc import Callable

from specchat.engine.commands import Submit
from specchat.engine.decoding.planner import Planner
from specchat.engine.events import Admitted, FinishReason, Given
from specchat.engine.request import Request
from specchat.engine.sampling.rng import fresh_seed
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.prompt import (
    FittedPrompt,
    check_length,
    check_source,
    check_source_length,
    encode,
    encode_reply,
    fit,
)
from specchat.engine.sequence.scheduler import Scheduler
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.sequence.thinking import find_markers
from specchat.engine.worker.assembly import Assembly
from specchat.engine.worker.model_notices import UNREPEATABLE
from specchat.engine.worker.notices import Notices
from specchat.engine.worker.open_requests import OpenRequests, sentence


class Admission:
    """Gives waiting requests the slots that are free, first come, first served.

    Args:
        made: what the engine runs with.
        scheduler: of the slots.
        planner: told of rows that start.
        requests: where one is refused that cannot start.
        notices: for what the user should know.
        clock: seconds since the engine started.
    """

    def __init__(
        self,
        made: Assembly,
        scheduler: Scheduler[Submit],
        planner: Planner,
        requests: OpenRequests,
        notices: Notices,
        clock: Callable[[], float],
    ) -> None:
        self._made = made
        self._scheduler = scheduler
        self._planner = planner
        self._requests = requests
        self._notices = notices
        self._clock = clock
        self._thinking = find_markers(made.model.tokenizer)

    def run(self) -> None:
        """Admit as many as there is room for."""
        while self._scheduler.waiting and self._scheduler.has_room:
            submitted = self._scheduler.waiting.popleft()
            try:
                self._start(submitted)
            except Exception as error:  # a tokenizer, a template: whatever it raises is this request's alone
                self._requests.refuse(submitted, FinishReason.ERROR, sentence(error))

    def _start(self, submitted: Submit) -> None:
        request, model, target = submitted.request, self._made.model, self._made.target
        drafter = self._planner.named(request.drafter, request.gamma)
        request.check_vocabulary(model.vocab_size)
        given = encode_reply(request, model.tokenizer)
        source = self._source(request)
        if model.start is None:
            fitted = fit(request, model.tokenizer, len(given), target.context)
        else:
            fitted = FittedPrompt([model.start])
        prompt = [*fitted.ids, *given]
        check_length(len(prompt), target.context)
        now, thinking = self._clock(), self._thinking
        place = self._scheduler.place(prompt)
        row = SequenceState(
            request=request,
            outbox=submitted.outbox,
            slot=place.slot,
            tokens=prompt,
            prompt_length=len(prompt),
            cached=place.length,
            seed=fresh_seed() if request.sampling.seed is None else request.sampling.seed,
            text=Detokenizer(model.tokenizer, request.stop, thinking.special if thinking else {}),
            drafter=drafter,
            admitted_at=now,
            continued=len(given),
            source=source,
        )
        pieces = row.text.begin(given)
        around = thinking.of_prompt(fitted.ids, model.tokenizer) if thinking else None
        # Nothing may fail between these two: the slot would be thought to hold what it held before.
        if place.source != place.slot and place.length:
            target.cache.copy(place.source, place.slot, place.length)
        self._scheduler.admit(row)
        self._planner.admit(row)
        if row.adaptive and request.sampling.greedy and self._made.rounds_by_width:
            self._notices.tell([UNREPEATABLE.format(dtype=model.format)])
        row.outbox.put(
            Admitted(
                request.request_id,
                row.prompt_tokens,
                row.cached,
                now - submitted.at,
                now,
                tuple(Given(token, piece) for token, piece in zip(given, pieces, strict=True)),
                around,
                fitted.left_out,
            )
        )

    def _source(self, request: Request) -> tuple[int, ...]:
        """What an encoder-decoder reads; nothing for other models.

        Raises:
            EngineError: the request has a conversation, or its prompt is too long.
        """
        model = self._made.model
        if model.start is None:
            return ()
        check_source(request, model.name)
        source = tuple(encode(request, model.tokenizer))
        check_source_length(len(source), self._made.target.context)
        return source
