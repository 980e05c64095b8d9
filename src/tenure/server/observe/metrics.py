"""The metrics of a server, for Prometheus.

Laws:
1. Counting adds to a dictionary. Texts are made by a scrape.
2. Labels are bounded: beyond `TENANTS_MAX` tenants the label is `_other`, and likewise for workflows. Routes are templates.
3. `gwi_*` have the names, labels and words of the git-with-intent document, for runs of that profile. `tenure_*` count
   everything, in the kernel's words.
4. Each process counts what it has done itself: sum over processes. Gauges come from the database, are the same in every
   process, and are at most `FRESH_SECONDS` old: take the maximum over processes.
5. A tenant's credential sees the numbers of its tenant and those without a tenant, but not which other tenants there are.
"""

from __future__ import annotations

import asyncio
import traceback
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from tenure.errors import TenureError
from tenure.kernel import profiles
from tenure.reads.metrics import ActiveRunCount, OldestPending

if TYPE_CHECKING:
    from tenure.kernel.feed import ObservedEvent

log = structlog.get_logger(__name__)

TENANTS_MAX = 200
TYPES_MAX = 200
OTHER = "_other"
GWI = "git-with-intent"
STREAM = "/events/stream"
FRESH_SECONDS = 5.0
READ_SECONDS = 3.0
"""How long the database may take for the gauges of a scrape. After that, a scrape has only the rest."""
DURATIONS = (0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

Labels = tuple[str, ...]


class LabelledCounter:
    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self._name, self._text, self._labels = name, text, labels
        self.counts: dict[Labels, float] = {}

    def add(self, labels: Labels = (), count: float = 1.0) -> None:
        self.counts[labels] = self.counts.get(labels, 0.0) + count

    def family(self) -> Metric:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, count in self.counts.items():
            family.add_metric(labels, count)
        return family


class LabelledHistogram:
    def __init__(self, name: str, text: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> None:
        self._name, self._text, self._labels, self._bounds = name, text, labels, bounds
        self._found: dict[Labels, tuple[list[int], list[float]]] = {}

    def add(self, value: float, labels: Labels = ()) -> None:
        found = self._found.get(labels)
        if found is None:
            found = self._found[labels] = ([0] * (len(self._bounds) + 1), [0.0])
        found[0][bisect_left(self._bounds, value)] += 1
        found[1][0] += value

    def family(self) -> Metric:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for labels, (counts, total) in self._found.items():
            buckets, so_far = [], 0
            for bound, count in zip((*map(str, self._bounds), "+Inf"), counts, strict=True):
                so_far += count
                buckets.append((bound, so_far))
            family.add_metric(labels, buckets, total[0])
        return family


class LabelLimiter:
    """Keeps the first `most` names, and replaces all others by `_other`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, name: str) -> str:
        if name in self._known:
            return name
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(name)
        return name


class _TenantRegistry(CollectorRegistry):
    """What one tenant sees of the metrics (law 5)."""

    def __init__(self, whole: CollectorRegistry, tenant: str) -> None:
        super().__init__()
        self._whole, self._tenant = whole, tenant

    def collect(self) -> Iterator[Metric]:
        for metric in self._whole.collect():
            metric.samples = [
                one for one in metric.samples if one.labels.get("tenant_id", self._tenant) == self._tenant
            ]
            yield metric


class Metrics:
    def __init__(
        self, read_gauges: Callable[[int], Awaitable[tuple[list[ActiveRunCount], OldestPending]]]
    ) -> None:
        """`read_gauges` reads the gauges of the database, for at most so many tenants."""
        self._read_gauges = read_gauges
        self.tenant = LabelLimiter(TENANTS_MAX)
        self._type = LabelLimiter(TYPES_MAX)
        self._active: list[ActiveRunCount] = []
        self._oldest: OldestPending | None = None
        self._read_at = -1e9
        self._reading: asyncio.Task[None] | None = None
        self._store_up = True
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        """Further gauges of this process: name -> (text, function that reads it)."""
        self.counters: dict[str, tuple[str, Callable[[], float]]] = {}
        """Counters that are kept elsewhere: name -> (text, function that reads it)."""
        self.refused: dict[str, int] = {}
        """Refusals because a limit was reached, by the limit (`server.load_limits`)."""
        by_tenant = ("from_state", "to_state", "tenant_id")
        self._gwi_transitions = LabelledCounter("gwi_run_transitions", "State transition count", by_tenant)
        self._gwi_durations = LabelledHistogram(
            "gwi_run_duration_seconds", "Run duration by outcome", DURATIONS, ("type", "status", "tenant_id")
        )
        self._gwi_hits = LabelledCounter(
            "gwi_idempotency_hits", "Idempotency cache hits/misses", ("source", "result")
        )
        self._transitions = LabelledCounter("tenure_run_transitions", "Changes of runs' states", by_tenant)
        self._durations = LabelledHistogram(
            "tenure_run_duration_seconds",
            "How long runs took from their beginning to their end",
            DURATIONS,
            ("profile", "status", "tenant_id"),
        )
        self._hits = LabelledCounter(
            "tenure_idempotency_hits", "Requests under an idempotency key", ("source", "result")
        )
        self._expiries = LabelledCounter(
            "tenure_lease_expiries", "Leases that nobody extended in time", ("tenant_id",)
        )
        self._batches = LabelledHistogram("tenure_commit_batch_size", "Commands in one commit", SIZES)
        self._commits = LabelledHistogram("tenure_commit_seconds", "How long a batch took to commit", SECONDS)
        self._requests = LabelledCounter(
            "tenure_http_requests", "Requests answered", ("route", "method", "status")
        )
        self._latencies = LabelledHistogram(
            "tenure_http_request_seconds",
            "From a request's headers to the end of its answer",
            SECONDS,
            ("route", "method"),
        )
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    # ------------------------------------------------------------------------------------------ counting

    def count_event(self, event: ObservedEvent, words: tuple[str, str]) -> None:
        """Count an event of a run; `words` are its states before and after, in its profile's words."""
        tenant = self.tenant(event.tenant)
        if event.before is not None and event.before != event.status:
            self._transitions.add((event.before, event.status, tenant))
        seconds = (event.duration_us or 0) / 1e6
        if event.reason is not None:
            self._durations.add(seconds, (event.profile, event.status, tenant))
        if event.orphaned:
            self._expiries.add((tenant,))
        if event.profile == GWI:
            if words[0] != words[1]:
                self._gwi_transitions.add((*words, tenant))
            if event.reason is not None:
                self._gwi_durations.add(seconds, (self._type(event.workflow), words[1], tenant))

    def count_key_use(self, source: str, result: str) -> None:
        """Count a request under an idempotency key: `result` is hit, miss, conflict or expired."""
        self._hits.add((source, result))
        self._gwi_hits.add((source, result))

    def count_commit(self, commands: int, seconds: float) -> None:
        self._batches.add(commands)
        self._commits.add(seconds)

    def count_request(self, route: str | None, method: str, status: int, seconds: float) -> None:
        labels = (route or OTHER, method if method in METHODS else OTHER)
        self._requests.add((*labels, str(status)))
        if route != STREAM:  # a stream is open as long as its client listens
            self._latencies.add(seconds, labels)

    # ----------------------------------------------------------------------------------------- scraping

    async def text(self, tenant: str | None = None) -> bytes:
        """The metrics as text: all of them, or those that a tenant may see (law 5)."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._read_at > FRESH_SECONDS:
            if self._reading is None or self._reading.done():
                self._reading = loop.create_task(self._read())
            await asyncio.wait((self._reading,), timeout=READ_SECONDS)
        return generate_latest(self.registry if tenant is None else _TenantRegistry(self.registry, tenant))

    async def _read(self) -> None:
        try:
            self._active, self._oldest = await self._read_gauges(TENANTS_MAX)
            self._store_up = True
        except Exception as fault:  # a scrape has what is known, and `tenure_store_up` is 0
            if not isinstance(fault, TenureError):
                log.error("gauges_failed", traceback=traceback.format_exc())
            self._active, self._oldest, self._store_up = [], None, False
        self._read_at = asyncio.get_running_loop().time()

    def describe(self) -> list[Metric]:
        """Nothing: without this, the registry would collect once to learn the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        for counted in (
            self._gwi_transitions, self._gwi_durations, self._gwi_hits, self._transitions, self._durations, self._hits,
            self._expiries, self._batches, self._commits, self._requests, self._latencies,
        ):  # fmt: skip
            yield counted.family()
        yield from self._of_runs()
        yield from self._of_ages()
        refused = CounterMetricFamily(
            "tenure_http_refused", "What was refused because a bound was reached", labels=("bound",)
        )
        for bound, count in self.refused.items():
            refused.add_metric((bound,), count)
        yield refused
        for name, (text, read) in self.gauges.items():
            yield GaugeMetricFamily(name, text, value=read())
        for name, (text, read) in self.counters.items():
            yield CounterMetricFamily(name, text, value=read())
        yield GaugeMetricFamily(
            "tenure_store_up", "Whether the database answers", value=float(self._store_up)
        )
        info = GaugeMetricFamily("tenure_build_info", "What runs here", labels=("version",))
        info.add_metric((version("tenure"),), 1.0)
        yield info

    def _of_runs(self) -> Iterator[Metric]:
        words = profiles.get(GWI).run.words
        all_runs: dict[Labels, float] = {}
        gwi: dict[Labels, float] = {}
        for row in self._active:
            tenant = self.tenant(row.tenant)
            all_runs[row.status, tenant] = all_runs.get((row.status, tenant), 0.0) + row.count
            if row.profile == GWI:
                word = words.get(row.status)
                # A run that is being canceled keeps its earlier word, which only its history has.
                label = (word if isinstance(word, str) else "running", tenant)
                gwi[label] = gwi.get(label, 0.0) + row.count
        for name, text, counts in (
            ("gwi_run_active_gauge", "Current active runs by status", gwi),
            ("tenure_runs_active", "Runs that are not finished", all_runs),
        ):
            family = GaugeMetricFamily(name, text, labels=("status", "tenant_id"))
            for labels, count in counts.items():
                family.add_metric(labels, count)
            yield family

    def _of_ages(self) -> Iterator[Metric]:
        oldest = self._oldest
        if oldest is None:
            return
        for name, text, since in (
            (
                "tenure_queue_age_seconds",
                "How long the oldest step waits that could be claimed",
                oldest.ready_at,
            ),
            (
                "tenure_sweeper_lag_seconds",
                "How long ago the first moment came that was not acted on",
                oldest.due_at,
            ),
            ("tenure_outbox_lag_seconds", "How long one run has owed another something", oldest.owed_at),
            (
                "tenure_webhook_lag_seconds",
                "How overdue the oldest message to a subscriber is",
                oldest.notice_at,
            ),
        ):
            late = 0.0 if since is None else max(oldest.now_us - since, 0) / 1e6
            yield GaugeMetricFamily(name, text, value=late)
