"""Which claim queue is served next: weighted fairness over tenants and workspaces, and caps. Pure.

Laws:
1. Stride scheduling: each claim queue (tenant, workspace) has a pass. The lowest pass is served next, and serving raises it
   by 1 / share. A tenant's share is its weight, split over its workspaces by their weights, so a tenant gains nothing by
   having many workspaces.
2. A queue that was idle starts at the lowest pass of the others: being idle earns nothing. Nor does being blocked by a cap:
   only queues that can be served count for the lowest pass.
3. Only whether a queue has work counts, not how much: a single step is served within one round.
4. Caps leave headroom: what a tenant, and within it a workflow, may still lease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from tenure.kernel.run_rows import Cap

ClaimQueueKey = tuple[str, str]

PASSES_KEPT_MAX = 10_000


class FairShares:
    def __init__(self) -> None:
        self._passes: dict[ClaimQueueKey, float] = {}
        self._seen: dict[ClaimQueueKey, int] = {}
        """The number of the claim that last saw a queue."""
        self._claims = 0
        self._floor = 0.0
        """The lowest pass at the last claim: where a queue starts that meets no other."""

    def serve(
        self,
        queues: Sequence[ClaimQueueKey],
        caps: dict[ClaimQueueKey, Cap],
        slots: int,
        room: dict[str, int],
    ) -> dict[ClaimQueueKey, int]:
        """How many of `slots` each queue gets. `caps` are by (tenant, scope), `room` by capped tenant."""
        stride = _strides(queues, caps)
        left = dict(room)
        given = dict.fromkeys(queues, 0)
        open_queues = [queue for queue in queues if left.get(queue[0], 1) > 0]
        passes, _ = self._standing(open_queues, stride)
        seen = self._seen
        while slots > 0 and open_queues:
            queue = min(open_queues, key=lambda queue: (passes[queue], seen.get(queue, 0)))
            given[queue] += 1
            passes[queue] += stride[queue]
            slots -= 1
            if queue[0] in left:
                left[queue[0]] -= 1
                if left[queue[0]] <= 0:
                    open_queues = [other for other in open_queues if other[0] != queue[0]]
        return given

    def _standing(
        self, queues: Sequence[ClaimQueueKey], stride: dict[ClaimQueueKey, float]
    ) -> tuple[dict[ClaimQueueKey, float], float]:
        """The passes of queues that can be served, and the lowest pass of those seen at the last claim. A queue that was away
        starts at most one stride after that."""
        known, seen = self._passes, self._seen
        last = max((seen[queue] for queue in queues if queue in known), default=0)
        floor = min(
            (known[queue] for queue in queues if queue in known and seen[queue] == last), default=self._floor
        )
        passes = {}
        for queue in queues:
            at = known.get(queue, floor)
            if seen.get(queue, 0) != last:
                at = min(max(at, floor), floor + stride[queue])
            passes[queue] = at
        return passes, floor

    def served(
        self,
        queues: Sequence[ClaimQueueKey],
        caps: dict[ClaimQueueKey, Cap],
        taken: Iterable[ClaimQueueKey],
        blocked: Collection[ClaimQueueKey] = (),
    ) -> None:
        """Account for the steps that were taken. `blocked` are queues whose steps cannot be claimed now."""
        counts = Counter(taken)
        stride = _strides(queues, caps)
        passes, floor = self._standing([queue for queue in queues if queue not in blocked], stride)
        self._floor = floor
        if len(self._passes) > PASSES_KEPT_MAX:
            self._passes.clear()
            self._seen.clear()
        self._claims += 1
        for queue in queues:
            at = passes[queue] if queue in passes else max(self._passes.get(queue, floor), floor)
            self._passes[queue] = at + stride[queue] * counts[queue]
            self._seen[queue] = self._claims


def _strides(queues: Sequence[ClaimQueueKey], caps: dict[ClaimQueueKey, Cap]) -> dict[ClaimQueueKey, float]:
    weight = {queue: _weight(queue, caps) for queue in queues}
    total: dict[str, float] = {}
    for (tenant, _), (_, part) in weight.items():
        total[tenant] = total.get(tenant, 0.0) + part
    return {queue: total[queue[0]] / (own * part) for queue, (own, part) in weight.items()}


def _weight(queue: ClaimQueueKey, caps: dict[ClaimQueueKey, Cap]) -> tuple[float, float]:
    tenant, workspace = queue
    own = caps.get((tenant, ""))
    part = caps.get((tenant, f"ws:{workspace}"))
    return float(own.weight if own else 1), float(part.weight if part else 1)


def headroom(
    caps: dict[ClaimQueueKey, Cap], usage: dict[ClaimQueueKey, int]
) -> tuple[dict[str, int], dict[ClaimQueueKey, int]]:
    """What capped tenants, and capped workflows by (tenant, workflow), may still lease."""
    tenants: dict[str, int] = {}
    workflows: dict[ClaimQueueKey, int] = {}
    for (tenant, scope), cap in caps.items():
        if cap.max_concurrency is None:
            continue
        if scope == "":
            used = sum(leases for (t, _), leases in usage.items() if t == tenant)
            tenants[tenant] = cap.max_concurrency - used
        elif scope.startswith("wf:"):
            key = tenant, scope.removeprefix("wf:")
            workflows[key] = cap.max_concurrency - usage.get(key, 0)
    return tenants, workflows


def rate_full_until(
    caps: dict[str, Cap], workflow: str, rates: dict[str, tuple[int, int]], window_us: int
) -> int | None:
    """Until when a tenant (scope '') or a workflow ('wf:NAME') may start no run. None: it may start one now.

    `rates`: workflow -> how many runs were admitted within the window, and when the first one was.
    """
    until: int | None = None
    for scope, counted in (
        ("", list(rates.values())),
        (f"wf:{workflow}", [rates[workflow]] if workflow in rates else []),
    ):
        cap = caps.get(scope)
        if cap is None or cap.max_runs_per_min is None:
            continue
        if sum(runs for runs, _ in counted) >= cap.max_runs_per_min:
            full = min((first for _, first in counted), default=0) + window_us
            until = full if until is None else max(until, full)
    return until
