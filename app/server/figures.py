"""Figures of all requests of a server for Prometheus, as defined by `engine.Metrics`."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from specchat.engine import Admitted, Event, Finished, Metrics, Round

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
_PENDING = 256
"""Records that are counted together: counting them one by one, between passes, takes several times as long."""
Family = CounterMetricFamily | GaugeMetricFamily


class Figures(Collector):
    """Counts events; `text` writes the figures. `slots` requests can run at once."""

    def __init__(self, slots: int) -> None:
        self._metrics = Metrics()
        self._slots = slots
        self._pending: list[Admitted | Round] = []
        """Records not yet in `_metrics`."""
        self._waiting: set[str] = set()
        self._running: set[str] = set()
        self._awaiting_first: dict[str, float] = {}
        """Time of submission of requests without a token."""
        self._ended: Counter[str] = Counter()
        self._registry = CollectorRegistry()
        self._queued = Histogram("specchat_queue_seconds", "Wait for a slot", buckets=_SECONDS, registry=self._registry)
        first = "specchat_time_to_first_token_seconds", "From submission to the end of the first round."
        self._first = Histogram(*first, buckets=_SECONDS, registry=self._registry)
        self._registry.register(self)
        self._round_s = 0.0

    @property
    def open(self) -> int:
        """Requests that run or wait."""
        return len(self._waiting) + len(self._running)

    def submitted(self, request_id: str) -> None:
        """Count a request as waiting."""
        self._waiting.add(request_id)

    def add(self, event: Event) -> None:
        """Count one event."""
        match event:
            case Round():
                self._keep(event)
                if self._awaiting_first and (submitted := self._awaiting_first.pop(event.request_id, None)) is not None:
                    self._first.observe(event.at - submitted)
            case Admitted():
                self._keep(event)
                self._waiting.discard(event.request_id)
                self._running.add(event.request_id)
                self._awaiting_first[event.request_id] = event.at - event.queued_s
                self._queued.observe(event.queued_s)
            case Finished():
                self._ended[event.reason] += 1
                self._waiting.discard(event.request_id)
                self._running.discard(event.request_id)
                self._awaiting_first.pop(event.request_id, None)

    def _keep(self, record: Admitted | Round) -> None:
        self._pending.append(record)
        if len(self._pending) >= _PENDING:
            self._count()

    def _count(self) -> None:
        """Count the records that are pending."""
        for record in self._pending:
            self._metrics.add(record)
            if isinstance(record, Round):
                self._round_s += record.seconds / record.rows
        self._pending.clear()

    def text(self) -> bytes:
        """The exposition text."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Family]:
        """All families but the histograms, which the registry holds itself."""
        self._count()
        s = self._metrics
        yield GaugeMetricFamily("specchat_slots", "Requests that can run at once.", self._slots)
        yield GaugeMetricFamily("specchat_requests_running", "Requests that have a slot.", len(self._running))
        yield GaugeMetricFamily("specchat_requests_waiting", "Requests that wait for a slot.", len(self._waiting))
        ended = CounterMetricFamily("specchat_requests", "Requests that have ended, by reason.", labels=["reason"])
        for reason, count in sorted(self._ended.items()):
            ended.add_metric([reason], count)
        yield ended
        for name, text, value in (
            ("rounds", "Rounds, each one draft and one verification of one request.", s.rounds),
            ("emitted_tokens", "Tokens of replies.", s.emitted),
            ("wasted_tokens", "Drafted tokens that are not part of a reply.", s.wasted),
            ("round_seconds", "Time of rounds; one that many requests share counts once.", self._round_s),
            ("prompt_tokens", "Tokens of prompts.", s.prompt_tokens),
            ("reused_tokens", "Tokens of prompts that were in the cache already.", s.reused_tokens),
        ):
            yield CounterMetricFamily(f"specchat_{name}", text, value)
        tested = CounterMetricFamily("specchat_tested", "Tested positions, by draft position.", labels=["position"])
        accepted = CounterMetricFamily("specchat_accepted", "Accepted tokens, by position.", labels=["position"])
        rate = GaugeMetricFamily("specchat_acceptance", "Accepted / tested, by draft position.", labels=["position"])
        rows = zip(s.position_tested, s.position_accepted, s.per_position, strict=True)
        for position, (of, kept, share) in enumerate(rows, start=1):
            tested.add_metric([str(position)], of)
            accepted.add_metric([str(position)], kept)
            rate.add_metric([str(position)], share)
        yield from (tested, accepted, rate)
        tau = s.mean_emitted_length
        if tau is not None:
            yield GaugeMetricFamily("specchat_mean_emitted_length", "Tau: tokens per target pass and request.", tau)
        speed = (s.recent_tokens_per_second or 0.0) if self._running else 0.0
        yield GaugeMetricFamily("specchat_tokens_per_second", "Of all requests, in the last two seconds.", speed)
