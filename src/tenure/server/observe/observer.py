"""Watches the orchestrator, and passes events of runs to the metrics and the log.

Laws:
1. It sees what this process has committed, after the commit. Other processes see their own commits.
2. The states of a run are in the words of its profile. Some states keep the word before; that word is remembered here. If the run came
   into such a state in another process, the profile's first word is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tenure.clock import SECOND_US
from tenure.kernel import profiles

if TYPE_CHECKING:
    from tenure.govern.evidence.sealer import SealerTask
    from tenure.kernel.feed import ObservedEvent
    from tenure.orchestrator import Orchestrator
    from tenure.server.observe.metrics import Metrics
    from tenure.server.observe.structured_logs import RunEventLog

KEPT_MAX = 10_000
_RESULTS = {
    "IDEMPOTENCY_CONFLICT": "conflict",
    "IDEMPOTENCY_KEY_REUSED": "conflict",
    "IDEMPOTENCY_EXPIRED": "expired",
}


class Observer:
    def __init__(self, orchestrator: Orchestrator, metrics: Metrics, event_log: RunEventLog | None) -> None:
        self._orchestrator = orchestrator
        self.metrics = metrics
        self.event_log = event_log
        self._kept: dict[int, str] = {}
        self._end: Callable[[], None] | None = None

    def start(self) -> None:
        self._end = self._orchestrator.watch(self._observe)
        self._orchestrator.on_batch = self.metrics.count_commit
        gauges, counters, orchestrator = self.metrics.gauges, self.metrics.counters, self._orchestrator
        gauges["tenure_commands_waiting"] = (
            "Commands that wait for a commit in this process",
            lambda: float(orchestrator.waiting),
        )
        store: Any = orchestrator.store
        if hasattr(store, "clock_doubt_us"):  # a SQLite file
            gauges["tenure_clock_doubt_seconds"] = (
                "How far this host's clock is ahead of the file's time (below 0: behind) while it is ignored; else 0",
                lambda: store.clock_doubt_us / SECOND_US,
            )
        counters["tenure_commands"] = ("Commands carried out", lambda: float(orchestrator.commands))
        counters["tenure_stale_messages"] = (
            "Messages of leases that had ended",
            lambda: float(orchestrator.stale),
        )

    def add_sealer(self, sealer: SealerTask) -> None:
        """Add metrics of a sealer."""
        self.metrics.counters["tenure_seals"] = ("Runs sealed with evidence", lambda: float(sealer.sealed))
        self.metrics.counters["tenure_seal_failures"] = (
            "How often a run could not be sealed",
            lambda: float(sealer.failed),
        )
        self.metrics.gauges["tenure_signing_key_lost"] = (
            "Whether the key that seals cannot be used, so that nothing is sealed",
            lambda: float(sealer.key_trouble is not None),
        )

    def stop(self) -> None:
        if self._end is not None:
            self._end()
            self._end = None
        self._orchestrator.on_batch = None

    def record_key_use(self, source: str, result: str, key: str, run_id: str | None, tenant: str) -> None:
        """Record a request under an idempotency key: `result` is hit, miss, conflict or expired."""
        self.metrics.count_key_use(source, result)
        if self.event_log is not None and result in ("hit", "expired"):
            self.event_log.idempotency_hit(key, run_id, tenant)

    def record_answer(
        self, state: dict[str, Any], status: int, headers: Mapping[bytes, bytes], tenant: str
    ) -> None:
        result = _RESULTS.get(state.get("code", ""))
        if result is None:
            if status >= 400:
                return  # a refused request leaves its key unused
            result = "hit" if b"idempotency-replayed" in headers or status == 202 else "miss"
        place = headers.get(b"location", b"").decode()
        run = place.removeprefix("/runs/") if place.startswith("/runs/") else None
        self.record_key_use("api", result, state["keyed"], run, tenant)

    def _observe(self, events: list[ObservedEvent]) -> None:
        for event in events:
            words = self._words(event)
            self.metrics.count_event(event, words)
            if self.event_log is not None:
                self.event_log.log_event(event, words)

    def _words(self, event: ObservedEvent) -> tuple[str, str]:
        """The run's states before and after an event; the same word twice if the state did not change."""
        profile = profiles.get(event.profile)
        before = profile.word(
            "run",
            event.status if event.before is None else event.before,
            last=self._kept.pop(event.run_id, None),
        )
        after = before
        if event.before is not None and event.before != event.status:
            after = profile.word("run", event.status, last=before)
        if not isinstance(profile.run.words.get(event.status), str):
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            self._kept[event.run_id] = after
        return before, after
